#pragma once

#include "tests/conformance/ptx/harness.h"

// The rows, by family; each family has a file of its own.
namespace fargpu::conformance {

void AddIntegerRows(Table* table);     // integer_rows.cc
void AddBitRows(Table* table);         // bit_rows.cc
void AddFloatRows(Table* table);       // float_rows.cc
void AddHalfRows(Table* table);        // half_rows.cc
void AddConversionRows(Table* table);  // conversion_rows.cc
void AddComparisonRows(Table* table);  // comparison_rows.cc
void AddControlRows(Table* table);     // control_rows.cc
void AddMemoryRows(Table* table);      // memory_rows.cc
void AddAtomicRows(Table* table);      // memory_rows.cc
void AddMultimemRows(Table* table);    // memory_rows.cc
void AddMatrixRows(Table* table);      // matrix_rows.cc
void AddTextureRows(Table* table);     // texture_rows.cc
void AddWarpRows(Table* table);        // warp_rows.cc
void AddVideoRows(Table* table);       // video_rows.cc

struct Family {
  const char* name;
  void (*add)(Table* table);
};
inline constexpr Family kFamilies[] = {
    {"Integer", AddIntegerRows},       {"Bits", AddBitRows},
    {"Float", AddFloatRows},           {"Half", AddHalfRows},
    {"Conversion", AddConversionRows}, {"Comparison", AddComparisonRows},
    {"Control", AddControlRows},       {"Memory", AddMemoryRows},
    {"Atomic", AddAtomicRows},         {"Warp", AddWarpRows},
    {"Matrix", AddMatrixRows},         {"Video", AddVideoRows},
    {"Texture", AddTextureRows},       {"Multimem", AddMultimemRows},
};

}  // namespace fargpu::conformance
