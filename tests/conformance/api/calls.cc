#include "calls.h"

#include "objects.h"

namespace fargpu::conformance {

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
#include "battery_calls.inc"
  };
  return rows;
}

}  // namespace fargpu::conformance
