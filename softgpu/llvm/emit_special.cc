// Special registers: %tid, %clock and the like.
#include <cstddef>

#include "absl/strings/str_cat.h"

#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

absl::StatusOr<LaneValue> InstructionEmitter::ReadSpecial(const Instruction& at,
                                                          const Operand& operand) {
  const absl::string_view name = operand.name;
  const int axis = operand.component == 'x'   ? 0
                   : operand.component == 'y' ? 1
                   : operand.component == 'z' ? 2
                                              : -1;
  llvm::Type* i32 = builder_.getInt32Ty();
  const auto field = [&](size_t offset, const char* what) {
    return LaneValue::Uniform(ContextField(i32, offset, what));
  };
  const uint32_t block[3] = {options_.block.x, options_.block.y, options_.block.z};
  const bool shape_known = block[0] != 0;
  LaneValue lanes;
  lanes.scalar = Int32(0);
  lanes.offsets = &lane_ids_;
  lanes.zero_bits = 5;
  lanes.value_bits = 5;
  if (name == "%tid" && axis >= 0) {
    const LaneValue warp = LaneValue::Uniform(WarpIndex());
    if (!shape_known) {
      // Divide the linear index of each thread by the block's sides, known only now.
      llvm::Value* linear = builder_.CreateAdd(Splat(builder_, builder_.CreateShl(warp.scalar, 5)),
                                               OffsetVector(i32, lane_ids_));
      const auto side = [&](int k) {
        return Splat(builder_,
                     ContextField(i32, offsetof(WarpContext, block_size) + 4 * k, "ntid"));
      };
      if (axis > 0) linear = builder_.CreateUDiv(linear, side(0));
      if (axis > 1) linear = builder_.CreateUDiv(linear, side(1));
      if (axis < 2) linear = builder_.CreateURem(linear, side(axis));
      return LaneValue::Varying(linear);
    }
    const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
    if (block[axis] == 1) return LaneValue::Uniform(Int32(0));
    // Per lane: a base that depends on the warp and an offset that does not, if there is one.
    uint64_t below = 1;
    for (int k = 0; k < axis; ++k) below *= block[k];
    const uint64_t warps = (threads + 31) / 32;
    const auto coordinate = [&](uint64_t w, int lane) {
      return static_cast<int64_t>((w * 32 + lane) / below % block[axis]);
    };
    bool regular = true;
    LaneOffsets offsets;
    for (int lane = 0; lane < kWarpSize; ++lane)
      offsets[lane] = coordinate(0, lane) - coordinate(0, 0);
    std::vector<uint32_t> bases(warps);
    for (uint64_t w = 0; w < warps && regular; ++w) {
      bases[w] = static_cast<uint32_t>(coordinate(w, 0));
      for (int lane = 0; lane < kWarpSize; ++lane) {
        if (w * 32 + lane < threads && coordinate(w, lane) - bases[w] != offsets[lane])
          regular = false;
      }
    }
    llvm::Value* linear = builder_.CreateShl(warp.scalar, 5, "", /*HasNUW=*/true, /*HasNSW=*/true);
    if (!regular) {
      llvm::Value* all = builder_.CreateAdd(Splat(builder_, linear), OffsetVector(i32, lane_ids_));
      llvm::Value* value = builder_.CreateUDiv(all, Constant(all, below));
      return LaneValue::Varying(builder_.CreateURem(value, Constant(value, block[axis])));
    }
    LaneValue value;
    value.scalar = builder_.CreateURem(
        builder_.CreateUDiv(linear, Int32(static_cast<uint32_t>(below))), Int32(block[axis]));
    unsigned zero_bits = 5;
    for (const uint32_t base : bases) {
      while (zero_bits > 0 && (base & ((1u << zero_bits) - 1)) != 0) --zero_bits;
    }
    value.zero_bits = zero_bits;
    value.value_bits = 10;  // a block has at most 1024 threads
    bool flat = true;
    for (const int64_t offset : offsets) flat = flat && offset == 0;
    if (!flat) value.offsets = Keep(offsets);
    return value;
  }
  if (name == "%ntid" && axis >= 0) {
    if (shape_known) return LaneValue::Uniform(Int32(block[axis]));
    return field(offsetof(WarpContext, block_size) + 4 * axis, "ntid");
  }
  if (name == "%ctaid" && axis >= 0) return LaneValue::Uniform(BlockIndex(axis));
  if (name == "%nctaid" && axis >= 0)
    return field(offsetof(WarpContext, grid_size) + 4 * axis, "nctaid");
  if (name == "%laneid") return lanes;
  if (name == "%warpid") return LaneValue::Uniform(WarpIndex());
  if (name == "%nwarpid") return LaneValue::Uniform(Int32(32));
  if (name == "%smid") return field(offsetof(WarpContext, multiprocessor), "smid");
  if (name == "%nsmid") return field(offsetof(WarpContext, multiprocessors), "nsmid");
  if (name == "%gridid") {
    return LaneValue::Uniform(
        ContextField(builder_.getInt64Ty(), offsetof(WarpContext, grid_number), "gridid"));
  }
  if (name == "%envreg1" || name == "%envreg2") {
    // Two halves of the address of what the blocks of a cooperative grid synchronise on.
    llvm::Value* workspace =
        ContextField(builder_.getInt64Ty(), offsetof(WarpContext, grid_workspace), "workspace");
    if (name == "%envreg1") workspace = builder_.CreateLShr(workspace, 32);
    return LaneValue::Uniform(builder_.CreateTrunc(workspace, i32));
  }
  if (name.substr(0, 7) == "%envreg") return LaneValue::Uniform(Int32(0));
  if (name == "%current_graph_exec") return LaneValue::Uniform(builder_.getInt64(0));
  if (name == "%clusterid" && axis >= 0)
    return LaneValue::Uniform(builder_.CreateUDiv(BlockIndex(axis), ClusterSize(axis)));
  if (name == "%nclusterid" && axis >= 0) {
    llvm::Value* blocks = ContextField(i32, offsetof(WarpContext, grid_size) + 4 * axis, "nctaid");
    return LaneValue::Uniform(builder_.CreateUDiv(blocks, ClusterSize(axis)));
  }
  if (name == "%cluster_ctaid" && axis >= 0)
    return LaneValue::Uniform(builder_.CreateURem(BlockIndex(axis), ClusterSize(axis)));
  if (name == "%cluster_nctaid" && axis >= 0) return LaneValue::Uniform(ClusterSize(axis));
  if (name == "%cluster_ctarank") return LaneValue::Uniform(ClusterRank());
  if (name == "%cluster_nctarank") {
    return LaneValue::Uniform(
        builder_.CreateMul(builder_.CreateMul(ClusterSize(0), ClusterSize(1)), ClusterSize(2)));
  }
  if (name == "%is_explicit_cluster") {
    llvm::Value* said =
        ContextField(i32, offsetof(WarpContext, explicit_cluster), "explicit_cluster");
    return LaneValue::Uniform(builder_.CreateICmpNE(said, Int32(0)));
  }
  // Behind all that the kernel asked for, see Launch::reserved_shared_bytes.
  if (name == "%reserved_smem_offset_begin" || name == "%reserved_smem_offset_1")
    return field(offsetof(WarpContext, reserved_shared_offset), "reserved");
  if (name == "%reserved_smem_offset_cap" || name == "%reserved_smem_offset_end") {
    llvm::Value* bytes =
        ContextField(builder_.getInt64Ty(), offsetof(WarpContext, shared_bytes), "shared_bytes");
    return LaneValue::Uniform(builder_.CreateTrunc(bytes, i32));
  }
  if (name.substr(0, 10) == "%lanemask_") {
    const absl::string_view which = name.substr(10);
    LaneOffsets offsets;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const uint32_t eq = 1u << lane;
      const uint32_t lt = eq - 1;
      offsets[lane] = which == "eq"   ? eq
                      : which == "lt" ? lt
                      : which == "le" ? (lt | eq)
                      : which == "gt" ? ~(lt | eq)
                      : which == "ge" ? ~lt
                                      : 0;
    }
    if (which == "eq" || which == "lt" || which == "le" || which == "gt" || which == "ge") {
      return LaneValue::Varying(OffsetVector(i32, offsets));
    }
  }
  if (name == "%clock" || name == "%clock_hi" || name == "%clock64") {
    llvm::Value* clock = CallRuntime(kRuntimeClock, builder_.getInt64Ty(), {});
    if (name == "%clock_hi") clock = builder_.CreateLShr(clock, 32);
    return LaneValue::Uniform(name == "%clock64" ? clock : builder_.CreateTrunc(clock, i32));
  }
  if (name == "%globaltimer" || name == "%globaltimer_lo" || name == "%globaltimer_hi") {
    llvm::Value* timer = CallRuntime(kRuntimeTimer, builder_.getInt64Ty(), {});
    if (name == "%globaltimer") return LaneValue::Uniform(timer);
    if (name == "%globaltimer_hi") timer = builder_.CreateLShr(timer, 32);
    return LaneValue::Uniform(builder_.CreateTrunc(timer, i32));
  }
  if (name == "%dynamic_smem_size") {
    return field(offsetof(WarpContext, dynamic_shared_bytes), "dynamic_shared");
  }
  if (name == "%total_smem_size" || name == "%aggr_smem_size") {
    return field(offsetof(WarpContext, total_shared_bytes), "total_shared");
  }
  return Unsupported(at, absl::StrCat("special register ", name));
}

}  // namespace fargpu::softgpu
