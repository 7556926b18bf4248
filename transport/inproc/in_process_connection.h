#pragma once

#include <memory>
#include <utility>

#include "transport/connection.h"

namespace fargpu::transport {

// Two ends of a connection inside one process, for tests. Bytes are copied by Send, so nothing
// stays borrowed. An end that is destroyed is a dead peer to the other once that has read what was
// sent.
std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> NewInProcessPair();

}  // namespace fargpu::transport
