#include "client/cuda/stats.h"

#include "absl/strings/str_cat.h"

namespace fargpu::client {

std::string Stats::Format() const {
  return absl::StrCat("waiting_round_trips ", waiting_round_trips.load(), "\ncalls ", calls.load(),
                      "\nframes ", frames.load(), "\nbulk_bytes_sent ", bulk_bytes_sent.load(),
                      "\nbulk_bytes_received ", bulk_bytes_received.load(), "\n");
}

}  // namespace fargpu::client
