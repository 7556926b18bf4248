#include "protocol/driver_abi/context_storage.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fargpu::driver_abi {
namespace {

// Handles are only compared, so numbers do. Each test takes its own, since storage is one per
// process.
CUcontext Context(uintptr_t number) { return reinterpret_cast<CUcontext>(number); }
void* Pointer(uintptr_t number) { return reinterpret_cast<void*>(number); }

std::vector<std::tuple<CUcontext, void*, void*>>& Destroyed() {
  static auto* const destroyed = new std::vector<std::tuple<CUcontext, void*, void*>>;
  return *destroyed;
}

void RecordDestruction(CUcontext context, void* key, void* value) {
  Destroyed().emplace_back(context, key, value);
}

TEST(ContextStorageTest, GivesBackWhatWasPut) {
  void* value = Pointer(99);
  EXPECT_EQ(GetContextStorage(&value, Context(1), Pointer(1)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(value, Pointer(99));

  EXPECT_EQ(PutContextStorage(Context(1), Pointer(1), Pointer(11), nullptr), CUDA_SUCCESS);
  EXPECT_EQ(PutContextStorage(Context(1), Pointer(2), nullptr, nullptr), CUDA_SUCCESS);

  EXPECT_EQ(GetContextStorage(&value, Context(1), Pointer(1)), CUDA_SUCCESS);
  EXPECT_EQ(value, Pointer(11));
  EXPECT_EQ(GetContextStorage(&value, Context(1), Pointer(2)), CUDA_SUCCESS);
  EXPECT_EQ(value, nullptr);
  EXPECT_EQ(GetContextStorage(&value, Context(2), Pointer(1)), CUDA_ERROR_INVALID_HANDLE);
  DestroyContextStorage(Context(1));
}

TEST(ContextStorageTest, RefusesNoContext) {
  void* value = nullptr;
  EXPECT_EQ(PutContextStorage(nullptr, Pointer(1), nullptr, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(GetContextStorage(&value, nullptr, Pointer(1)), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(DeleteContextStorage(nullptr, Pointer(1)), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(GetContextStorage(nullptr, Context(1), Pointer(1)), CUDA_ERROR_INVALID_VALUE);
  DestroyContextStorage(nullptr);
}

TEST(ContextStorageTest, PutReplacesAndDeleteForgetsWithoutDestructors) {
  Destroyed().clear();
  PutContextStorage(Context(3), Pointer(1), Pointer(11), &RecordDestruction);
  PutContextStorage(Context(3), Pointer(1), Pointer(12), &RecordDestruction);
  void* value = nullptr;
  EXPECT_EQ(GetContextStorage(&value, Context(3), Pointer(1)), CUDA_SUCCESS);
  EXPECT_EQ(value, Pointer(12));

  EXPECT_EQ(DeleteContextStorage(Context(3), Pointer(1)), CUDA_SUCCESS);
  EXPECT_EQ(DeleteContextStorage(Context(3), Pointer(1)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(GetContextStorage(&value, Context(3), Pointer(1)), CUDA_ERROR_INVALID_HANDLE);
  DestroyContextStorage(Context(3));
  EXPECT_THAT(Destroyed(), testing::IsEmpty());
}

TEST(ContextStorageTest, DestroyCallsEachDestructorOnce) {
  Destroyed().clear();
  PutContextStorage(Context(4), Pointer(1), Pointer(11), &RecordDestruction);
  PutContextStorage(Context(4), Pointer(2), Pointer(12), &RecordDestruction);
  PutContextStorage(Context(4), Pointer(3), Pointer(13), nullptr);
  PutContextStorage(Context(5), Pointer(1), Pointer(14), &RecordDestruction);

  DestroyContextStorage(Context(4));
  DestroyContextStorage(Context(4));

  EXPECT_THAT(Destroyed(),
              testing::UnorderedElementsAre(std::make_tuple(Context(4), Pointer(1), Pointer(11)),
                                            std::make_tuple(Context(4), Pointer(2), Pointer(12))));
  void* value = nullptr;
  EXPECT_EQ(GetContextStorage(&value, Context(4), Pointer(3)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(GetContextStorage(&value, Context(5), Pointer(1)), CUDA_SUCCESS);
  EXPECT_EQ(value, Pointer(14));
  DeleteContextStorage(Context(5), Pointer(1));
}

TEST(ContextStorageTest, DestructorMayUseTheStorage) {
  PutContextStorage(Context(6), Pointer(1), Pointer(11), [](CUcontext context, void* key, void*) {
    EXPECT_EQ(DeleteContextStorage(context, key), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(PutContextStorage(context, Pointer(2), Pointer(22), nullptr), CUDA_SUCCESS);
  });
  DestroyContextStorage(Context(6));
  void* value = nullptr;
  EXPECT_EQ(GetContextStorage(&value, Context(6), Pointer(2)), CUDA_SUCCESS);
  EXPECT_EQ(value, Pointer(22));
  DestroyContextStorage(Context(6));
}

TEST(ContextStorageTest, HoldsManyEntries) {
  constexpr uintptr_t kContexts = 40;
  constexpr uintptr_t kKeys = 25;
  for (uintptr_t c = 0; c < kContexts; ++c) {
    for (uintptr_t k = 0; k < kKeys; ++k) {
      PutContextStorage(Context(0x1000 + 64 * c), Pointer(0x5000 + 8 * k), Pointer(c * 1000 + k),
                        nullptr);
    }
  }
  for (uintptr_t c = 0; c < kContexts; c += 2) DestroyContextStorage(Context(0x1000 + 64 * c));
  for (uintptr_t c = 0; c < kContexts; ++c) {
    for (uintptr_t k = 0; k < kKeys; ++k) {
      void* value = nullptr;
      const CUresult result =
          GetContextStorage(&value, Context(0x1000 + 64 * c), Pointer(0x5000 + 8 * k));
      if (c % 2 == 0) {
        EXPECT_EQ(result, CUDA_ERROR_INVALID_HANDLE);
      } else {
        EXPECT_EQ(result, CUDA_SUCCESS);
        EXPECT_EQ(value, Pointer(c * 1000 + k));
      }
    }
  }
  for (uintptr_t c = 0; c < kContexts; ++c) DestroyContextStorage(Context(0x1000 + 64 * c));
}

TEST(ContextStorageTest, ReadersNeverMissAnEntryWhileOthersChange) {
  // The value is a function of the key, so a torn read would show.
  for (uintptr_t k = 1; k <= 8; ++k) {
    PutContextStorage(Context(7), Pointer(k), Pointer(k * 7919), nullptr);
  }
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        for (uintptr_t k = 1; k <= 8; ++k) {
          void* value = nullptr;
          if (GetContextStorage(&value, Context(7), Pointer(k)) != CUDA_SUCCESS ||
              value != Pointer(k * 7919)) {
            wrong.fetch_add(1);
          }
        }
      }
    });
  }
  for (uintptr_t round = 0; round < 300; ++round) {
    for (uintptr_t k = 0; k < 40; ++k) {
      PutContextStorage(Context(8), Pointer(0x100 + k), Pointer(round), nullptr);
    }
    DeleteContextStorage(Context(8), Pointer(0x100));
    DestroyContextStorage(Context(8));
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0);
  DestroyContextStorage(Context(7));
}

// A fork while other threads write must leave the child a storage that works: the runtime deletes
// its entries when the child exits.
TEST(ContextStorageTest, WorksInAForkedChild) {
  PutContextStorage(Context(9), Pointer(1), Pointer(11), nullptr);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop.load()) {
      PutContextStorage(Context(10), Pointer(1), Pointer(1), nullptr);
      DestroyContextStorage(Context(10));
    }
  });
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);  // a child that hangs ends as a failure
      void* value = nullptr;
      const bool right = GetContextStorage(&value, Context(9), Pointer(1)) == CUDA_SUCCESS &&
                         value == Pointer(11) &&
                         DeleteContextStorage(Context(9), Pointer(1)) == CUDA_SUCCESS;
      _exit(right ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop.store(true);
  writer.join();
  DestroyContextStorage(Context(9));
}

}  // namespace
}  // namespace fargpu::driver_abi
