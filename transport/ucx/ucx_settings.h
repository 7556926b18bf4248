#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "transport/ucx/ucx_endpoint.h"

namespace fargpu::transport {

// The UCX configuration for `options` under the present environment, as names without "UCX_" and
// values for ucp_config_modify.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> UcxSettings(
    const UcxOptions& options);

// "ucx/tcp", "ucx/shm", "ucx/rc"... from what ucp_ep_print_info wrote. Where bulk bytes take
// another way than messages it is named too: "ucx/shm+tcp".
std::string DescribeLanes(absl::string_view endpoint_info);

}  // namespace fargpu::transport
