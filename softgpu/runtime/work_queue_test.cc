#include "softgpu/runtime/work_queue.h"

#include <chrono>
#include <thread>

#include "gmock/gmock.h"

namespace fargpu::softgpu {
namespace {

// Opens once; items wait for it so that tests decide when a queue goes on.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    opened_.SignalAll();
  }
  void Pass() {
    MutexLock lock(&mutex_);
    while (!open_) opened_.WaitFor(&mutex_, std::chrono::seconds(1));
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(WorkQueueTest, RunsInOrder) {
  auto queue = WorkQueue::Create();
  std::vector<int> order;  // only the queue's items touch it
  for (int i = 0; i < 1000; ++i) {
    queue->Submit([&order, i] { order.push_back(i); }, {},
                  i % 3 == 0 ? RunOn::kWorker : RunOn::kAnyThread,
                  i % 2 == 0 ? Wake::kYes : Wake::kNo);
  }
  queue->WaitIdle();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  EXPECT_TRUE(queue->idle());
}

// A worker that has run out of work looks for more for a moment: pauses of about that length.
TEST(WorkQueueTest, NothingIsLostBetweenLookingAndSleeping) {
  auto queue = WorkQueue::Create();
  std::vector<int> order;
  for (int i = 0; i < 3000; ++i) {
    const uint64_t position = queue->Submit([&order, i] { order.push_back(i); }, {},
                                            i % 3 == 0 ? RunOn::kWorker : RunOn::kAnyThread,
                                            i % 5 == 0 ? Wake::kNo : Wake::kYes);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i % 50);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    if (i % 7 == 0) queue->Wait(position);
  }
  queue->WaitIdle();
  ASSERT_EQ(order.size(), 3000u);
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(order[i], i);
}

TEST(WorkQueueTest, TheWaiterRunsWhatMayRunAnywhere) {
  auto queue = WorkQueue::Create();
  std::thread::id ran_on, worker;
  queue->Submit([&] { ran_on = std::this_thread::get_id(); }, {}, RunOn::kAnyThread, Wake::kNo);
  queue->WaitIdle();
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  queue->Submit([&] { worker = std::this_thread::get_id(); }, {}, RunOn::kWorker, Wake::kNo);
  queue->WaitIdle();
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(WorkQueueTest, SubmitDoesNotWait) {
  auto queue = WorkQueue::Create();
  Gate gate;
  const uint64_t position = queue->Submit([&] { gate.Pass(); }, {}, RunOn::kWorker, Wake::kYes);
  EXPECT_FALSE(queue->Completed(position));
  EXPECT_FALSE(queue->idle());
  gate.Open();
  queue->Wait(position);
  EXPECT_TRUE(queue->Completed(position));
}

TEST(WorkQueueTest, DependenciesHoldItemsBack) {
  auto first = WorkQueue::Create();
  auto second = WorkQueue::Create();
  Gate gate;
  std::atomic<int> step{0};
  const uint64_t blocker = first->Submit(
      [&] {
        gate.Pass();
        step = 1;
      },
      {}, RunOn::kWorker, Wake::kYes);
  int seen = -1;
  second->Submit([&] { seen = step; }, {{first, blocker}}, RunOn::kAnyThread, Wake::kYes);
  EXPECT_FALSE(second->idle());
  gate.Open();
  second->WaitIdle();
  EXPECT_EQ(seen, 1);
}

TEST(WorkQueueTest, ManyQueuesThatWaitForEachOtherDoNotStarve) {
  // Each queue's item waits for the one made before it; all are busy at once.
  constexpr int kQueues = 64;
  Gate gate;
  std::vector<std::shared_ptr<WorkQueue>> queues;
  std::vector<int> order;
  for (int i = 0; i < kQueues; ++i) {
    queues.push_back(WorkQueue::Create());
    std::vector<WorkQueue::Dependency> after;
    if (i > 0) after.push_back({queues[i - 1], queues[i - 1]->submitted()});
    queues[i]->Submit(
        [&, i] {
          if (i == 0) gate.Pass();
          order.push_back(i);
        },
        after, RunOn::kWorker, Wake::kYes);
  }
  gate.Open();
  queues.back()->WaitIdle();
  EXPECT_EQ(order.size(), size_t{kQueues});
  EXPECT_EQ(order.back(), kQueues - 1);
}

TEST(WorkQueueTest, AQueueMayGoWhileItIsBusy) {
  std::atomic<int> ran{0};
  Gate gate;
  {
    auto queue = WorkQueue::Create();
    queue->Submit([&] { gate.Pass(); }, {}, RunOn::kWorker, Wake::kYes);
    queue->Submit([&] { ++ran; }, {}, RunOn::kWorker, Wake::kYes);
  }
  gate.Open();
  for (int i = 0; i < 5000 && ran == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(ran, 1);
}

TEST(WorkQueueTest, ManyThreadsSubmitAndWait) {
  auto queue = WorkQueue::Create();
  int sum = 0;  // guarded by the queue: one item at a time
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const uint64_t position =
            queue->Submit([&] { ++sum; }, {}, i % 2 ? RunOn::kWorker : RunOn::kAnyThread,
                          i % 3 ? Wake::kYes : Wake::kNo);
        if (i % 7 == 0) {
          queue->Wait(position);
          EXPECT_TRUE(queue->Completed(position));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  queue->WaitIdle();
  EXPECT_EQ(sum, 2000);
}

// Says by its exit status whether a process can end while a stream is stuck.
void EndWithWorkLeft() {
  auto stuck = WorkQueue::Create();
  Gate never;
  stuck->Submit([&] { never.Pass(); }, {}, RunOn::kWorker, Wake::kYes);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  StopWorkers(std::chrono::milliseconds(100));
  stuck->WaitIdle();  // does not block on the worker that is stuck
  auto fresh = WorkQueue::Create();
  bool copied = false;
  bool launched = false;
  fresh->Submit([&] { launched = true; }, {}, RunOn::kWorker, Wake::kYes);
  fresh->Submit([&] { copied = true; }, {}, RunOn::kAnyThread, Wake::kNo);
  fresh->WaitIdle();
  _exit(copied && !launched && WorkersStopped() ? 0 : 1);
}

// StopWorkers() is for good, so it is tested in a process of its own.
TEST(WorkQueueDeathTest, EndsWithWorkLeft) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(EndWithWorkLeft(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace fargpu::softgpu
