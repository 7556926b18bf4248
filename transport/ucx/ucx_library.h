#pragma once

#include <sys/types.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include <ucp/api/ucp.h>

namespace fargpu::transport {

// The functions of UCX that we use, found by dlsym. UCX is never linked: only a load under our own
// environment keeps it from installing signal handlers and patching mmap (DESIGN D12).
struct UcxLibrary {
  decltype(&::ucp_get_version) get_version = nullptr;
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_query) worker_query = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&::ucp_ep_flush_nbx) ep_flush_nbx = nullptr;
  decltype(&::ucp_ep_print_info) ep_print_info = nullptr;
  decltype(&::ucp_am_send_nbx) am_send_nbx = nullptr;
  decltype(&::ucp_am_recv_data_nbx) am_recv_data_nbx = nullptr;
  decltype(&::ucp_am_data_release) am_data_release = nullptr;
  decltype(&::ucp_request_check_status) request_check_status = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;
};

// Loads libucp.so.0, or the file FARGPU_UCX_LIBRARY names, on the first call; later calls give the
// same answer. Never unloaded: UCX leaves things behind when it is.
absl::StatusOr<const UcxLibrary*> LoadUcx();

// Descriptors that appeared in this process since construction, except those that have nothing to
// do with UCX: files, and those somebody opened close-on-exec. TakeInto() makes them close-on-exec,
// because UCX does not and a leaked socket hides our death from the peer, and appends them. Only
// what other threads open without O_CLOEXEC in between can be mistaken for UCX's.
class DescriptorSweep {
 public:
  struct Entry {
    int fd;
    dev_t device;
    ino_t inode;
    // Whether the number still stands for the same thing.
    bool IsStillOpen() const;
  };

  DescriptorSweep();
  void TakeInto(std::vector<Entry>* entries) const;
  // Only connections that a listening socket among `entries` has accepted. UCX accepts on a thread
  // of its own at any time, and this cannot take what somebody else opened.
  void TakeAcceptedInto(std::vector<Entry>* entries) const;

 private:
  template <typename Predicate>
  void TakeIf(Predicate predicate, std::vector<Entry>* entries) const;

  std::vector<int> before_;
};

}  // namespace fargpu::transport
