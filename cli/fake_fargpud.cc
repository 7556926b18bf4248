// Stands in for fargpud in cli_e2e_test.py: registers one card, says yes to every Reserve, sends
// heartbeats, ends on SIGTERM. Takes fargpud's options, and for the tests:
//   --fail            ends at once with a message
//   --leave-worker    starts a process that ignores SIGTERM and outlives it
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <CLI/CLI.hpp>

#include "common/mutex.h"
#include "protocol/proto/grpc_support.h"
#include "protocol/proto/node.grpc.pb.h"

namespace {

using fargpu::node::v1::BrokerMessage;
using fargpu::node::v1::NodeMessage;

// One stream, until it ends or `stop` is set.
void Serve(const std::shared_ptr<grpc::Channel>& channel, const NodeMessage& hello,
           const std::atomic<bool>& stop) {
  const auto stub = fargpu::node::v1::NodeRegistry::NewStub(channel);
  grpc::ClientContext context;
  const auto stream = stub->RegisterNode(&context);
  fargpu::Mutex write_mutex;
  const auto write = [&](const NodeMessage& message) {
    fargpu::MutexLock lock(&write_mutex);
    return stream->Write(message);
  };
  write(hello);
  std::atomic<bool> ended{false};
  std::thread heart([&] {
    for (int i = 0; !ended; ++i) {
      absl::SleepFor(absl::Milliseconds(50));
      NodeMessage message;
      message.mutable_heartbeat();
      if (i % 20 == 0) write(message);
      if (stop) context.TryCancel();
    }
  });
  BrokerMessage message;
  while (stream->Read(&message)) {
    NodeMessage answer;
    if (message.has_reserve()) {
      answer.mutable_reserve_result()->set_request_id(message.reserve().request_id());
    } else if (message.has_release_lease()) {
      answer.mutable_lease_ended()->set_lease_id(message.release_lease().lease_id());
    }
    write(answer);
  }
  ended = true;
  heart.join();
  stream->Finish();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("fake fargpud");
  std::string broker;
  std::string node;
  std::string run_dir;
  std::string driver;
  std::vector<std::string> listen;
  bool fail = false;
  bool leave_worker = false;
  app.add_option("--broker", broker)->required();
  app.add_option("--node", node)->required();
  app.add_option("--run-dir", run_dir)->required();
  app.add_option("--driver", driver);
  app.add_option("--listen", listen);
  app.add_flag("--fail", fail);
  app.add_flag("--leave-worker", leave_worker);
  CLI11_PARSE(app, argc, argv);
  if (fail) {
    std::cerr << "the card is on fire" << std::endl;
    return 3;
  }
  if (leave_worker && fork() == 0) {
    signal(SIGTERM, SIG_IGN);
    execlp("sleep", "sleep", "1000", nullptr);
    _exit(127);
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const auto channel = fargpu::MakeBrokerChannel(fargpu::ParseBrokerAddress(broker).value(), {});
  NodeMessage message;
  fargpu::node::v1::Hello& hello = *message.mutable_hello();
  hello.set_node_name(node);
  hello.add_endpoints(absl::StrCat("unix:", run_dir, "/fargpud.sock"));
  // What a card is can be told from its UUID.
  const char* const uuid = std::getenv("FAKE_FARGPUD_UUID");
  hello.add_devices()->set_uuid(uuid != nullptr ? uuid
                                                : "GPU-00000000-0000-0000-0000-000000000001");
  hello.mutable_devices(0)->set_name("Fake GPU");
  hello.mutable_devices(0)->set_memory_bytes(uint64_t{4} << 30);
  std::atomic<bool> stop{false};
  std::thread server([&] {
    while (!stop) {
      Serve(*channel, message, stop);
      absl::SleepFor(absl::Milliseconds(200));
    }
  });
  int signal = 0;
  sigwait(&signals, &signal);
  stop = true;
  server.join();
  return 0;
}
