#pragma once

namespace fargpu::client {

// What stream 0 means to an entry point: the legacy default stream, or, in the _ptds and _ptsz
// twins that a program built with per-thread default streams calls, the calling thread's own.
enum class DefaultStream { kLegacy, kPerThread };

}  // namespace fargpu::client
