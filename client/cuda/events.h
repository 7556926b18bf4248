#pragma once

#include <cuda.h>

#include "absl/status/status.h"

#include "client/cuda/session.h"

namespace fargpu::client {

// Records `event` on a stream, also where that is being captured.
absl::Status RecordEvent(Session& session, CUevent event, CUstream stream,
                         DefaultStream default_stream);

}  // namespace fargpu::client
