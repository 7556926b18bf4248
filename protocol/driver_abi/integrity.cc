#include "protocol/driver_abi/integrity.h"

#include <algorithm>
#include <cstring>

namespace fargpu::driver_abi {
namespace {

constexpr size_t kBlock = 16;

// The permutation of 0..255 that RFC 1319 draws from the digits of pi; integrity_test.cc draws it
// again. As data, because the first CUDA call of every process needs it.
constexpr uint8_t kPiSubstitution[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,   //
    98,  167, 5,   243, 192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202,  //
    30,  155, 87,  60,  253, 212, 224, 22,  103, 66,  111, 24,  138, 23,  229, 18,   //
    190, 78,  196, 214, 218, 158, 222, 73,  160, 251, 245, 142, 187, 47,  238, 122,  //
    169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,   //
    128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151, 3,    //
    255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198,  //
    79,  184, 56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241,  //
    69,  157, 112, 89,  100, 113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,    //
    27,  96,  37,  173, 174, 176, 185, 246, 28,  70,  97,  105, 52,  64,  126, 15,   //
    85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197, 234, 38,   //
    44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,   //
    106, 220, 55,  200, 108, 193, 171, 250, 36,  225, 123, 8,   12,  189, 177, 74,   //
    120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254, 59,  0,   29,  57,   //
    242, 239, 183, 14,  102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,   //
    49,  68,  80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20,   //
};

class Md2Hasher {
 public:
  void Update(absl::Span<const uint8_t> bytes) {
    for (const uint8_t byte : bytes) {
      block_[filled_++] = byte;
      if (filled_ == kBlock) {
        AddBlock(block_);
        filled_ = 0;
      }
    }
  }

  Md2Digest Finish() {
    const uint8_t padding = static_cast<uint8_t>(kBlock - filled_);
    std::memset(block_ + filled_, padding, padding);
    AddBlock(block_);
    uint8_t checksum[kBlock];
    std::memcpy(checksum, checksum_, kBlock);
    AddBlock(checksum);
    Md2Digest digest;
    std::memcpy(digest.data(), state_, kBlock);
    return digest;
  }

 private:
  void AddBlock(const uint8_t* block) {
    for (size_t i = 0; i < kBlock; ++i) {
      checksum_[i] ^= kPiSubstitution[block[i] ^ last_];
      last_ = checksum_[i];
      state_[kBlock + i] = block[i];
      state_[2 * kBlock + i] = block[i] ^ state_[i];
    }
    uint8_t t = 0;
    for (uint8_t round = 0; round < 18; ++round) {
      for (uint8_t& byte : state_) {
        byte ^= kPiSubstitution[t];
        t = byte;
      }
      t = static_cast<uint8_t>(t + round);
    }
  }

  uint8_t state_[3 * kBlock] = {};
  uint8_t checksum_[kBlock] = {};
  uint8_t last_ = 0;
  uint8_t block_[kBlock] = {};
  size_t filled_ = 0;
};

// Little endian, no padding.
class Message {
 public:
  template <typename T>
  void Add(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
    }
  }
  void AddBytes(absl::Span<const uint8_t> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  absl::Span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

constexpr uint8_t kIntegrityKey[] = {0x14, 0x6A, 0xDD, 0xAE, 0x53, 0xA9, 0xA7, 0x52,
                                     0xAA, 0x08, 0x41, 0x36, 0x0B, 0xF5, 0x5A, 0x9F};

}  // namespace

Md2Digest Md2(absl::Span<const uint8_t> message) {
  Md2Hasher hasher;
  hasher.Update(message);
  return hasher.Finish();
}

Md2Digest HmacMd2(absl::Span<const uint8_t> key, absl::Span<const uint8_t> message) {
  uint8_t block_key[kBlock] = {};
  if (key.size() > kBlock) {
    const Md2Digest digest = Md2(key);
    std::copy(digest.begin(), digest.end(), block_key);
  } else {
    std::copy(key.begin(), key.end(), block_key);
  }
  uint8_t inner_pad[kBlock];
  uint8_t outer_pad[kBlock];
  for (size_t i = 0; i < kBlock; ++i) {
    inner_pad[i] = block_key[i] ^ 0x36;
    outer_pad[i] = block_key[i] ^ 0x5c;
  }
  Md2Hasher inner;
  inner.Update(inner_pad);
  inner.Update(message);
  const Md2Digest inner_digest = inner.Finish();
  Md2Hasher outer;
  outer.Update(outer_pad);
  outer.Update(inner_digest);
  return outer.Finish();
}

std::array<uint64_t, 2> AnswerIntegrityQuestion(const IntegrityQuestion& question) {
  switch (question.version % 10) {
    case 0:
      return {0x3341181C03CB675C, 0x8ED383AA1F4CD1E8};
    case 1:
      return {0x1841181C03CB675C, 0x8ED383AA1F4CD1E8};
    case 2:
      break;
    default:
      return {0, 0};
  }
  Message message;
  message.Add(question.driver_version);
  message.Add(question.version);
  message.Add(question.process_id);
  message.Add(question.thread_id);
  message.Add(question.cudart_table);
  message.Add(question.integrity_table);
  message.Add(question.integrity_function);
  message.Add(question.seconds);
  for (const DeviceIdentity& device : question.devices) {
    message.AddBytes(device.uuid);
    message.Add(static_cast<uint32_t>(device.pci_domain));
    message.Add(static_cast<uint32_t>(device.pci_bus));
    message.Add(static_cast<uint32_t>(device.pci_device));
  }
  const Md2Digest digest = HmacMd2(kIntegrityKey, message.bytes());
  std::array<uint64_t, 2> answer;
  std::memcpy(answer.data(), digest.data(), digest.size());
  return answer;
}

}  // namespace fargpu::driver_abi
