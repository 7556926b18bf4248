#include "client/cuda/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "client/cuda/session.h"
#include "common/fd.h"
#include "common/log.h"
#include "memory/changed_runs.h"

namespace fargpu::client {
namespace {

constexpr size_t kPage = 4096;
// In which the worker deals out addresses and memory.
constexpr size_t kUnit = 2 << 20;
// Allocations from here on have a region of their own; smaller ones share one of kUnit.
constexpr size_t kLargeBytes = 1 << 20;
constexpr size_t kManagedAlignment = 512;
// Managed memory up to this is compared with what the card knows instead of being protected: that
// costs some 50 us per MiB and launch, but system calls may read and write such memory at any time.
constexpr size_t kMaxComparedBytes = 2 << 20;
// How much the part that is watched grows by.
constexpr size_t kWatchUnit = 64 << 10;

constexpr size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void* Pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

// Back to what the window of device addresses is where nothing of ours lies.
void CloseRange(uintptr_t address, size_t bytes) {
  mmap(Pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
}

}  // namespace

// Gathers runs of bytes for the card and sends them.
class SharedMemory::Writer {
 public:
  explicit Writer(Session* session) : session_(*session) {}

  absl::Status Add(wire::CallHeader header, uint64_t address, absl::Span<const char> bytes) {
    while (!bytes.empty()) {
      const absl::Span<const char> part = bytes.subspan(0, kMostBytes);
      if (bytes_.size() + part.size() > kMostBytes || request_.addresses.size() == kMostRuns) {
        RETURN_IF_ERROR(Send());
      }
      header_ = header;
      request_.addresses.push_back(address);
      request_.sizes.push_back(static_cast<uint32_t>(part.size()));
      bytes_.insert(bytes_.end(), part.begin(), part.end());
      address += part.size();
      bytes.remove_prefix(part.size());
    }
    return absl::OkStatus();
  }
  absl::Status Send() {
    if (bytes_.empty()) return absl::OkStatus();
    const absl::Status sent =
        session_.calls()
            .SendBulk(header_, request_, absl::MakeConstSpan(bytes_), CallStream::Bulk::kCopied)
            .status();
    request_ = {};
    bytes_.clear();
    ++sent_;
    return sent;
  }
  uint64_t sent() const { return sent_; }

 private:
  static constexpr size_t kMostBytes = 1 << 20;
  static constexpr size_t kMostRuns = 16384;
  Session& session_;
  wire::CallHeader header_;
  wire::SharedWriteRequest request_;
  std::vector<char> bytes_;
  uint64_t sent_ = 0;
};

SharedMemory::SharedMemory(Session* session) : session_(*session) {}

SharedMemory::~SharedMemory() {
  std::unique_ptr<PageFaults> faults;
  {
    MutexLock lock(&mutex_);
    faults = std::move(faults_);
  }
  faults.reset();
  MutexLock lock(&mutex_);
  while (!by_host_.empty()) Remove(by_host_.begin()->second.get(), Tell::kNo);
}

wire::CallHeader SharedMemory::Header(wire::ContextId context) const {
  wire::CallHeader header;
  header.thread = CurrentThread().number;
  header.context = context;
  const absl::StatusOr<Context*> current = session_.CurrentActive();
  if (current.ok()) header.context = (*current)->id;
  return header;
}

void SharedMemory::UpdateActive() { active_.store(!by_device_.empty()); }

SharedMemory::Region* SharedMemory::FindHost(uintptr_t address) const {
  auto it = by_host_.upper_bound(address);
  if (it == by_host_.begin()) return nullptr;
  Region* region = std::prev(it)->second.get();
  return address - region->host < region->bytes ? region : nullptr;
}

SharedMemory::Region* SharedMemory::FindDevice(CUdeviceptr address) const {
  auto it = by_device_.upper_bound(address);
  if (it == by_device_.begin()) return nullptr;
  Region* region = std::prev(it)->second;
  return address - region->device < region->bytes ? region : nullptr;
}

bool SharedMemory::Holds(CUdeviceptr address, size_t bytes) const {
  if (!active()) return false;
  MutexLock lock(&mutex_);
  return FindDevice(address) != nullptr || FindDevice(address + bytes - 1) != nullptr;
}

CUdeviceptr SharedMemory::OnCard(uintptr_t host, size_t bytes) const {
  if (!active()) return 0;
  MutexLock lock(&mutex_);
  const Region* region = FindHost(host);
  if (region == nullptr || bytes > region->bytes - (host - region->host)) return 0;
  const size_t offset = host - region->host;
  if (region->kind != Kind::kManaged && region->kind != Kind::kVariable) {
    auto extent = region->extents.upper_bound(offset);
    if (extent == region->extents.begin()) return 0;
    --extent;
    if (offset - extent->first >= extent->second ||
        bytes > extent->second - (offset - extent->first)) {
      return 0;
    }
  }
  return region->device + offset;
}

void SharedMemory::Add(std::unique_ptr<Region> region) {
  by_host_[region->host] = std::move(region);
}

// A range of addresses that both sides agree on. `bytes` and, unless the program's own memory is
// meant, the host's part of it are multiples of kUnit.
absl::StatusOr<SharedMemory::Region*> SharedMemory::NewRegion(Kind kind, size_t bytes,
                                                              size_t host_bytes) {
  ASSIGN_OR_RETURN(const Context* context, session_.CurrentActive());
  if (!session_.window().known()) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                     "the server's driver has no virtual memory interface");
  }
  wire::SharedReserveRequest request{.bytes = bytes};
  wire::SharedReserveReply reply;
  RETURN_IF_ERROR(session_.Call(request, &reply));
  if (reply.address % kUnit != 0 || !session_.window().Contains(reply.address) ||
      !session_.window().Contains(reply.address + bytes - 1)) {
    session_.calls().Distrust(absl::InvalidArgumentError(
        absl::StrCat("the worker reserves ", bytes, " bytes at 0x", absl::Hex(reply.address))));
    return session_.calls().status();
  }
  auto region = std::make_unique<Region>();
  region->kind = kind;
  region->host = region->device = reply.address;
  region->bytes = host_bytes;
  region->reserved = bytes;
  region->context = context->handle;
  region->context_id = context->id;
  Region* added = region.get();
  if (kind != Kind::kRegistered) {
    if (mprotect(Pointer(region->host), bytes, PROT_READ | PROT_WRITE) != 0) {
      const absl::Status failed = ErrnoStatus("mprotect of shared memory");
      session_.Send(wire::SharedReleaseRequest{.address = reply.address, .bytes = bytes})
          .IgnoreError();
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY, failed.message());
    }
    Add(std::move(region));
  } else {
    region.release();
  }
  return added;
}

absl::Status SharedMemory::Back(Region* region) {
  if (region->backed) return absl::OkStatus();
  wire::SharedBackRequest request{.address = region->device - region->device % kUnit,
                                  .bytes = region->reserved};
  wire::SharedBackReply reply;
  RETURN_IF_ERROR(session_.Call(request, &reply));
  region->backed = true;
  by_device_[region->device] = region;
  UpdateActive();
  return absl::OkStatus();
}

// From now on [offset, offset + bytes) is kept the same on both sides by comparing.
absl::Status SharedMemory::Activate(Region* region, size_t offset, size_t bytes) {
  if (region->kind != Kind::kVariable) RETURN_IF_ERROR(Back(region));
  if (region->lazy != nullptr) return absl::OkStatus();
  if (region->known == nullptr) {
    void* known = mmap(nullptr, RoundUp(region->bytes, kPage), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (known == MAP_FAILED) {
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                       absl::StrCat("a copy of ", region->bytes, " bytes of shared memory"));
    }
    madvise(known, RoundUp(region->bytes, kPage), MADV_DONTDUMP);
    region->known = static_cast<char*>(known);
  }
  if (offset + bytes > region->watched) {
    region->watched = std::min(region->bytes, RoundUp(offset + bytes, kWatchUnit));
    RETURN_IF_ERROR(session_.Send(
        wire::SharedWatchRequest{.address = region->device, .bytes = region->watched}));
  }
  region->extents[offset] = bytes;
  return absl::OkStatus();
}

absl::StatusOr<uintptr_t> SharedMemory::Allocate(Kind kind, size_t bytes) {
  MutexLock lock(&mutex_);
  const size_t alignment = kind == Kind::kManaged ? kManagedAlignment : kPage;
  ASSIGN_OR_RETURN(const Context* context, session_.CurrentActive());
  if (bytes > size_t{1} << 46) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, absl::StrCat(bytes, " bytes of shared memory"));
  }
  Region* region = nullptr;
  uintptr_t address = 0;
  if (bytes < kLargeBytes) {
    for (const auto& [host, candidate] : by_host_) {
      if (candidate->kind != kind || candidate->context != context->handle ||
          candidate->slab == nullptr) {
        continue;
      }
      address = candidate->slab->Allocate(RoundUp(bytes, alignment), alignment);
      if (address == memory::kNoAddress) continue;
      region = candidate.get();
      break;
    }
  }
  if (region == nullptr) {
    const size_t whole = RoundUp(std::max(bytes, kUnit), kUnit);
    ASSIGN_OR_RETURN(region, NewRegion(kind, whole, whole));
    absl::Cleanup remove = [this, region]()
                               ABSL_NO_THREAD_SAFETY_ANALYSIS { Remove(region, Tell::kYes); };
    address = region->host;
    if (bytes < kLargeBytes) {
      region->slab = std::make_unique<memory::AddressSpace>(region->host, region->bytes);
      address = region->slab->Allocate(RoundUp(bytes, alignment), alignment);
    }
    if (kind == Kind::kManaged) {
      RETURN_IF_ERROR(Back(region));
      if (region->bytes > kMaxComparedBytes ||
          compared_bytes_ + region->bytes > kMaxComparedBytes) {
        ASSIGN_OR_RETURN(region->lazy, LazyPages::Create(region->host, region->bytes));
        if (faults_ == nullptr) {
          faults_ = std::make_unique<PageFaults>(
              session_.window().base(), session_.window().base() + session_.window().bytes(),
              [this](uintptr_t at, PageFaults::Access access) { return Resolve(at, access); });
        }
      } else {
        compared_bytes_ += region->bytes;
      }
    }
    std::move(remove).Cancel();
  }
  if (kind == Kind::kPinned) {
    has_pinned_.store(true);
  } else if (region->lazy == nullptr) {
    // What another allocation has left there is nobody's business.
    std::memset(Pointer(address), 0, bytes);
    RETURN_IF_ERROR(Activate(region, address - region->host, bytes));
  }
  return address;
}

void SharedMemory::Free(uintptr_t address) {
  MutexLock lock(&mutex_);
  Region* region = FindHost(address);
  if (region == nullptr) return;
  region->extents.erase(address - region->host);
  if (region->slab != nullptr) {
    region->slab->Free(address);
    // One slab of compared memory stays for the next small allocations.
    if (!region->slab->empty() || region->lazy == nullptr) return;
  }
  Remove(region, Tell::kYes);
}

void SharedMemory::Remove(Region* region, Tell tell) {
  if (region->backed || region->kind == Kind::kVariable) by_device_.erase(region->device);
  UpdateActive();
  if (region->known != nullptr) {
    munmap(region->known, RoundUp(region->bytes, kPage));
    if (region->kind == Kind::kManaged) compared_bytes_ -= region->bytes;
  }
  if (tell == Tell::kYes) {
    if (region->reserved > 0) {
      // Watched under the address of the program's memory there, released as it was reserved.
      if (region->kind == Kind::kRegistered) {
        session_.Send(wire::SharedUnwatchRequest{.address = region->device}).IgnoreError();
      }
      session_
          .Send(wire::SharedReleaseRequest{.address = region->device - region->device % kUnit,
                                           .bytes = region->reserved})
          .IgnoreError();
    } else {
      session_.Send(wire::SharedUnwatchRequest{.address = region->device}).IgnoreError();
    }
  }
  switch (region->kind) {
    case Kind::kManaged:
    case Kind::kPinned:
      CloseRange(region->host, region->bytes);
      break;
    case Kind::kVariable: {
      const uintptr_t first = region->host / kPage * kPage;
      const uintptr_t end = RoundUp(region->host + region->bytes, kPage);
      for (uintptr_t page = first; page < end; page += kPage) {
        if (--variable_pages_[page] > 0) continue;
        variable_pages_.erase(page);
        if (session_.window().Contains(page)) {
          CloseRange(page, kPage);
        } else {
          munmap(Pointer(page), kPage);
        }
      }
      break;
    }
    case Kind::kRegistered:
      break;
  }
  by_host_.erase(region->host);
}

absl::StatusOr<CUdeviceptr> SharedMemory::Map(uintptr_t host, uintptr_t begin, size_t bytes) {
  MutexLock lock(&mutex_);
  Region* region = FindHost(host);
  if (region != nullptr && region->kind == Kind::kPinned) {
    const size_t offset = begin - region->host;
    if (region->extents.count(offset) == 0) RETURN_IF_ERROR(Activate(region, offset, bytes));
    return region->device + (host - region->host);
  }
  if (region == nullptr) {
    const size_t shift = begin % kPage;
    ASSIGN_OR_RETURN(region, NewRegion(Kind::kRegistered, RoundUp(bytes + shift, kUnit), bytes));
    std::unique_ptr<Region> owned(region);
    region->host = begin;
    region->device += shift;
    Add(std::move(owned));
    absl::Status active = Activate(region, 0, bytes);
    if (!active.ok()) {
      Remove(region, Tell::kYes);
      return active;
    }
  }
  return region->device + (host - region->host);
}

void SharedMemory::Unmap(uintptr_t begin) {
  MutexLock lock(&mutex_);
  const auto found = by_host_.find(begin);
  if (found != by_host_.end() && found->second->kind == Kind::kRegistered) {
    Remove(found->second.get(), Tell::kYes);
  }
}

absl::Status SharedMemory::MapReferenced(absl::Span<const char> parameters) {
  if (!has_pinned_.load()) return absl::OkStatus();
  for (size_t at = 0; at + sizeof(uint64_t) <= parameters.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, parameters.data() + at, sizeof(word));
    if (!session_.window().Contains(word)) continue;
    const std::optional<MemoryRange> range = session_.host_memory().Find(word);
    if (!range.has_value() || !range->ours) continue;
    RETURN_IF_ERROR(Map(word, range->begin, range->bytes).status());
  }
  return absl::OkStatus();
}

absl::Status SharedMemory::AddVariable(uintptr_t address, size_t bytes, const void* owner) {
  MutexLock lock(&mutex_);
  if (by_host_.count(address) != 0) return absl::OkStatus();  // programs ask more than once
  auto region = std::make_unique<Region>();
  region->kind = Kind::kVariable;
  region->host = region->device = address;
  region->bytes = bytes;
  region->owner = owner;
  const uintptr_t first = address / kPage * kPage;
  const uintptr_t end = RoundUp(address + bytes, kPage);
  for (uintptr_t page = first; page < end; page += kPage) {
    if (variable_pages_[page]++ > 0) continue;
    bool mapped = false;
    if (session_.window().Contains(page)) {
      mapped = mprotect(Pointer(page), kPage, PROT_READ | PROT_WRITE) == 0;
    } else {
      void* memory = mmap(Pointer(page), kPage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      mapped = memory == Pointer(page);
      if (!mapped && memory != MAP_FAILED) munmap(memory, kPage);
    }
    if (mapped) continue;
    // The card's driver has put the variable where this process has something else.
    region->bytes = page - address;
    if (--variable_pages_[page] == 0) variable_pages_.erase(page);
    for (uintptr_t done = first; done < page; done += kPage) {
      if (--variable_pages_[done] > 0) continue;
      variable_pages_.erase(done);
      munmap(Pointer(done), kPage);
    }
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("a managed variable at 0x", absl::Hex(address), " of ", bytes,
                                  " bytes: something else of this process lies there"));
  }
  Region* added = region.get();
  by_device_[address] = added;
  Add(std::move(region));
  UpdateActive();
  absl::Status status = Activate(added, 0, bytes);
  if (status.ok()) status = FetchChanges();  // what it is initialised to
  if (!status.ok()) Remove(added, Tell::kYes);
  return status;
}

void SharedMemory::RemoveVariables(const void* owner) {
  MutexLock lock(&mutex_);
  for (auto it = by_host_.begin(); it != by_host_.end();) {
    Region* region = it->second.get();
    ++it;
    if (region->kind == Kind::kVariable && region->owner == owner) {
      session_.device_memory().Remove(region->host);
      Remove(region, Tell::kYes);
    }
  }
}

void SharedMemory::RemoveContext(CUcontext context) {
  MutexLock lock(&mutex_);
  for (auto it = by_host_.begin(); it != by_host_.end();) {
    Region* region = it->second.get();
    ++it;
    if (region->context == context && context != nullptr) Remove(region, Tell::kYes);
  }
}

absl::Status SharedMemory::Flush() {
  Writer writer(&session_);
  for (const auto& entry : by_device_) {
    Region* const region = entry.second;
    const wire::CallHeader header = Header(region->context_id);
    if (region->lazy != nullptr) {
      RETURN_IF_ERROR(region->lazy->Flush([&](size_t offset, absl::Span<const char> bytes) {
        return writer.Add(header, region->device + offset, bytes);
      }));
      continue;
    }
    const char* const host = static_cast<const char*>(Pointer(region->host));
    for (const auto& extent : region->extents) {
      const char* const now = host + extent.first;
      char* const known = region->known + extent.first;
      const CUdeviceptr address = region->device + extent.first;
      absl::Status status;
      memory::ForEachChangedRun(now, known, extent.second, [&](size_t begin, size_t size) {
        // Through our copy, so that it is what was sent whatever the program writes meanwhile.
        std::memcpy(known + begin, now + begin, size);
        if (status.ok()) status = writer.Add(header, address + begin, {known + begin, size});
      });
      RETURN_IF_ERROR(status);
    }
  }
  RETURN_IF_ERROR(writer.Send());
  writes_ += writer.sent();
  return absl::OkStatus();
}

void SharedMemory::BeforeHostFunction() {
  if (!active()) return;
  {
    MutexLock lock(&mutex_);
    seen_.erase(0);
  }
  AfterWait(0).IgnoreError();  // a session that is over says so elsewhere
}

// The worker lets the stream go on as soon as it hears of it, not in the order of calls, so what
// the function wrote must be there before. It is asked for in vain where the dispatcher itself
// waits for the stream: then nothing is to be gained by waiting on.
void SharedMemory::AfterHostFunction() {
  if (!active()) return;
  constexpr absl::Duration kLongestWait = absl::Seconds(1);
  wire::CallHeader header;
  {
    MutexLock lock(&mutex_);
    const uint64_t before = writes_;
    ++work_;
    if (!Flush().ok() || writes_ == before) return;
    for (const auto& entry : by_device_) {
      if (entry.second->context_id.value != 0) header.context = entry.second->context_id;
    }
  }
  header.thread = CurrentThread().number;
  auto pending = std::make_unique<PendingReply>();
  CallStream& calls = session_.calls();
  if (!calls.Send(header, wire::MemGetInfoV2Request{}, pending.get()).ok()) return;
  calls.Flush().IgnoreError();
  const absl::Time deadline = absl::Now() + kLongestWait;
  while (!pending->done.load() && absl::Now() < deadline && calls.status().ok()) {
    absl::SleepFor(absl::Microseconds(50));
  }
  if (pending->done.load()) return;
  FARGPU_LOG(kWarning, "what a host function wrote to managed memory may be late");
  calls.Abandon(std::move(pending));
}

absl::Status SharedMemory::BeforeWork() {
  PageFaults::TakeOverIfUsed();
  MutexLock lock(&mutex_);
  ++work_;
  return Flush();
}

absl::Status SharedMemory::FetchChanges() {
  bool compares = false;
  wire::ContextId context;
  for (const auto& [device, region] : by_device_) {
    if (region->lazy != nullptr) {
      if (region->lazy->Invalidate()) continue;
      RETURN_IF_ERROR(Flush());
      region->lazy->Collapse();
      continue;
    }
    compares = compares || region->known != nullptr;
    if (region->context_id.value != 0) context = region->context_id;
  }
  if (!compares) return absl::OkStatus();
  uint64_t from = 0;
  do {
    const wire::SharedChangesRequest request{.from = from};
    wire::SharedChangesReply reply;
    PendingReply pending;
    RETURN_IF_ERROR(session_.calls().Send(Header(context), request, &pending));
    session_.calls().CountRoundTrip();
    RETURN_IF_ERROR(session_.calls().Wait(&pending));
    RETURN_IF_ERROR(session_.ResultOf("SharedChanges", pending));
    RETURN_IF_ERROR(session_.DecodeReply(pending, &reply));
    RETURN_IF_ERROR(Apply(reply.addresses, reply.sizes, reply.words));
    if (reply.next != 0 && reply.next <= from) {
      session_.calls().Distrust(
          absl::InvalidArgumentError("changes of shared memory go backwards"));
      return session_.calls().status();
    }
    from = reply.next;
  } while (from != 0);
  return absl::OkStatus();
}

absl::Status SharedMemory::Apply(absl::Span<const uint64_t> addresses,
                                 absl::Span<const uint32_t> sizes,
                                 absl::Span<const uint32_t> words) {
  const char* next = reinterpret_cast<const char*>(words.data());
  size_t left = words.size() * sizeof(uint32_t);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const size_t size = i < sizes.size() ? size_t{sizes[i]} * sizeof(uint32_t) : left + 1;
    if (size > left) {
      session_.calls().Distrust(
          absl::InvalidArgumentError("changes of shared memory do not fit together"));
      return session_.calls().status();
    }
    Region* region = FindDevice(addresses[i]);
    if (region != nullptr && region->known != nullptr) {
      const size_t offset = addresses[i] - region->device;
      char* const host = static_cast<char*>(Pointer(region->host)) + offset;
      char* const known = region->known + offset;
      const size_t inside = std::min(size, region->bytes - offset);
      // Only what the card has changed: beside it the program may be writing.
      for (size_t at = 0; at < inside; ++at) {
        if (next[at] == known[at]) continue;
        host[at] = known[at] = next[at];
      }
    }
    next += size;
    left -= size;
  }
  return absl::OkStatus();
}

absl::Status SharedMemory::AfterWait(uint64_t key) {
  PageFaults::TakeOverIfUsed();
  MutexLock lock(&mutex_);
  if (work_ == 0) return absl::OkStatus();
  if (seen_.size() > 1024) seen_.clear();
  uint64_t& seen = seen_[key];
  if (seen == work_) return absl::OkStatus();
  seen = work_;
  RETURN_IF_ERROR(FetchChanges());
  return BringWanted();
}

void SharedMemory::WantOnHost(CUdeviceptr address, size_t bytes) {
  MutexLock lock(&mutex_);
  Region* region = FindDevice(address);
  if (region == nullptr || region->lazy == nullptr) return;
  region->wanted.push_back({address - region->device, bytes});
  seen_.clear();  // so that the next wait looks, whatever it waits for
}

absl::Status SharedMemory::BringWanted() {
  for (const auto& [device, region] : by_device_) {
    const auto wanted = std::exchange(region->wanted, {});
    for (const auto& [offset, bytes] : wanted) {
      LazyPages& pages = *region->lazy;
      size_t at = offset;
      while (const size_t absent = pages.NextAbsent(&at, offset + bytes)) {
        RETURN_IF_ERROR(
            Fetch(Header(region->context_id).context, region->device + at, pages.At(at, absent)));
        if (!pages.Install(at, absent)) return absl::OkStatus();  // touched pages come one by one
        at += absent;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SharedMemory::Fetch(wire::ContextId context, CUdeviceptr address,
                                 absl::Span<char> to) {
  PendingReply pending;
  pending.bulk = to;
  wire::CallHeader header;
  header.thread = CurrentThread().number;
  header.context = context;
  RETURN_IF_ERROR(session_.calls().Send(
      header, wire::SharedReadRequest{.address = address, .bytes = to.size()}, &pending));
  session_.calls().CountRoundTrip();
  RETURN_IF_ERROR(session_.calls().Wait(&pending));
  return FromCuResult(pending.result, "SharedRead");
}

// On the thread that answers faults.
bool SharedMemory::Resolve(uintptr_t address, PageFaults::Access access) {
  while (true) {
    std::shared_ptr<LazyPages> pages;
    LazyPages::Wanted wanted;
    CUdeviceptr device = 0;
    wire::ContextId context;
    uint64_t epoch = 0;
    {
      MutexLock lock(&mutex_);
      Region* region = FindHost(address);
      if (region == nullptr || region->lazy == nullptr) return false;
      wanted = region->lazy->Touch(address - region->host, access);
      if (wanted.failed) {
        if (!Flush().ok()) return false;
        region->lazy->Collapse();
        continue;
      }
      if (wanted.bytes == 0) return true;
      pages = region->lazy;
      epoch = pages->epoch();
      device = region->device + wanted.offset;
      context = region->context_id;
    }
    const absl::Status fetched = Fetch(context, device, pages->At(wanted.offset, wanted.bytes));
    if (!fetched.ok()) {
      FARGPU_LOG(kError, "managed memory at 0x", absl::Hex(address),
                 " cannot be fetched: ", std::string(fetched.message()));
      return false;
    }
    MutexLock lock(&mutex_);
    if (pages->epoch() != epoch) continue;
    if (!pages->Install(wanted.offset, wanted.bytes)) {
      if (!Flush().ok()) return false;
      pages->Collapse();
      continue;
    }
    if (access == PageFaults::Access::kRead) return true;
  }
}

void SharedMemory::AbandonAfterFork() {
  // Held since PrepareFork() by the thread that has become this process's only one.
  [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (faults_ != nullptr) faults_->AbandonAfterFork();
    mutex_.Unlock();
  }();
}

}  // namespace fargpu::client
