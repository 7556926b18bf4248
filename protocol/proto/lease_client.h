#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/mutex.h"
#include "protocol/lease_file.h"
#include "protocol/proto/broker.grpc.pb.h"
#include "protocol/proto/grpc_support.h"

namespace fargpu {

// A connection to a broker. Any thread.
class BrokerClient {
 public:
  // kUnavailable if no broker answers at `address` within `timeout` (a refused connection is known
  // at once); kInvalidArgument for what is no address.
  static absl::StatusOr<std::unique_ptr<BrokerClient>> Connect(const std::string& address,
                                                               const TlsFiles& tls,
                                                               absl::Duration timeout);

  const std::string& address() const { return address_; }
  broker::v1::Broker::Stub& stub() { return *stub_; }

  // Makes a call that may be made twice, until a broker answers it or for 5 s; `call` must set its
  // deadline. A broker that was started anew meanwhile is found by connecting again.
  absl::Status CallUntilAnswered(absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call);

  // Waits for the connection as Connect does.
  absl::Status WaitConnected(absl::Duration timeout);

 private:
  BrokerClient(std::string address, std::shared_ptr<grpc::Channel> channel);

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<broker::v1::Broker::Stub> stub_;
};

// A lease that is renewed until it is released. It outlives a broker that is away for a while.
class LeaseHolder {
 public:
  // Sets request.request_id if it is empty, and repeats the call until the broker has answered it,
  // which is why this never takes two leases. Waits request.wait_ms and some seconds. `client` must
  // outlive the holder.
  static absl::StatusOr<std::unique_ptr<LeaseHolder>> Allocate(BrokerClient* client,
                                                               broker::v1::AllocateRequest request);
  // Releases, without a word if that fails: the lease then ends by its time-to-live.
  ~LeaseHolder();

  const LeaseFile& file() const { return file_; }
  // As it was when it was granted.
  const broker::v1::Lease& lease() const { return lease_; }
  // Stops renewing and gives the lease back. OK if it is over already.
  absl::Status Release(const std::string& reason);

 private:
  LeaseHolder(BrokerClient* client, LeaseFile file, broker::v1::Lease lease);
  void RunRenewals();
  void StopRenewals();

  BrokerClient* const client_;
  const LeaseFile file_;
  const broker::v1::Lease lease_;
  const absl::Duration renew_every_;
  bool released_ = false;
  Mutex mutex_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread renewals_;
};

// What a client needs of the answer to Allocate. kInvalidArgument if the broker's answer is not
// sound.
absl::StatusOr<LeaseFile> ToLeaseFile(const broker::v1::AllocateResponse& response);

// A name that every broker takes, from one of any bytes, e.g. a program's: what is not printable
// ASCII becomes '?', and the rest after 63 characters goes.
std::string LeaseNameFrom(absl::string_view name);

}  // namespace fargpu
