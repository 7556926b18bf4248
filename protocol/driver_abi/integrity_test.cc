#include "protocol/driver_abi/integrity.h"

#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fargpu::driver_abi {
namespace {

absl::Span<const uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Hex(const Md2Digest& digest) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::string Md2Hex(absl::string_view text) { return Hex(Md2(Bytes(text))); }

// The test suite of RFC 1319, appendix A.5.
TEST(Md2Test, AnswersAsRfc1319Says) {
  EXPECT_EQ(Md2Hex(""), "8350e5a3e24c153df2275c9f80692773");
  EXPECT_EQ(Md2Hex("a"), "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  EXPECT_EQ(Md2Hex("abc"), "da853b0d3f88d99b30283a69e6ded6bb");
  EXPECT_EQ(Md2Hex("message digest"), "ab4f496bfb2a530b219ff33031fe06b0");
  EXPECT_EQ(Md2Hex("abcdefghijklmnopqrstuvwxyz"), "4e8ddff3650292ab5a4108c3aa47940b");
  EXPECT_EQ(Md2Hex("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"),
            "da33def2a42df13975352846c30338cd");
  EXPECT_EQ(Md2Hex("123456789012345678901234567890123456789012345678901234567890123456789012345"
                   "67890"),
            "d5976f79d83d3a0dc9806c3c66f3efd8");
}

// `count` decimal digits of pi, beginning with 3, by Rabinowitz and Wagon's spigot.
std::vector<int> PiDigits(size_t count) {
  std::vector<uint64_t> remainders(count * 10 / 3 + 10, 2);
  std::vector<int> digits;
  while (digits.size() < count + 3) {
    uint64_t carry = 0;
    for (size_t i = remainders.size() - 1; i > 0; --i) {
      const uint64_t value = remainders[i] * 10 + carry;
      remainders[i] = value % (2 * i + 1);
      carry = value / (2 * i + 1) * i;
    }
    const uint64_t value = remainders[0] * 10 + carry;
    remainders[0] = value % 10;
    digits.push_back(static_cast<int>(value / 10));
    // A 10 is a carry into the digits before it.
    for (size_t i = digits.size() - 1; digits[i] > 9; --i) {
      digits[i] -= 10;
      ++digits[i - 1];
    }
  }
  digits.resize(count);
  return digits;
}

// Digits of pi as random numbers below `bound`, without bias.
class PiRandom {
 public:
  int Below(int bound) {
    while (true) {
      int value = Next();
      int range = 10;
      for (const int threshold : {10, 100}) {
        if (bound > threshold) {
          value = value * 10 + Next();
          range *= 10;
        }
      }
      const int fair = bound * (range / bound);
      if (value < fair) return value % bound;
    }
  }

 private:
  int Next() { return digits_.at(next_++); }
  const std::vector<int> digits_ = PiDigits(800);
  size_t next_ = 0;
};

// MD2 over a table shuffled here by the digits of pi: proves that the table in integrity.cc is
// that.
TEST(Md2Test, SubstitutionComesFromPi) {
  std::vector<uint8_t> table(256);
  std::iota(table.begin(), table.end(), uint8_t{0});
  PiRandom random;
  for (int i = 2; i <= 256; ++i) std::swap(table[random.Below(i)], table[i - 1]);

  // One block of padding, then its checksum: every round looks the table up 48 times, so that a
  // wrong entry changes the digest.
  for (int length = 0; length < 16; ++length) {
    const std::string text(length, static_cast<char>(length * 17));
    std::vector<uint8_t> message(text.begin(), text.end());
    message.insert(message.end(), 16 - length, static_cast<uint8_t>(16 - length));
    uint8_t last = 0;
    for (int i = 0; i < 16; ++i) message.push_back(last = table[message[i] ^ last]);
    uint8_t state[48] = {};
    for (int block = 0; block < 2; ++block) {
      for (int i = 0; i < 16; ++i) {
        state[16 + i] = message[16 * block + i];
        state[32 + i] = state[16 + i] ^ state[i];
      }
      for (int round = 0, t = 0; round < 18; ++round) {
        for (uint8_t& byte : state) t = byte ^= table[t];
        t = (t + round) & 255;
      }
    }
    Md2Digest expected;
    std::memcpy(expected.data(), state, 16);
    EXPECT_EQ(Md2Hex(text), Hex(expected)) << "length " << length;
  }
}

TEST(HmacMd2Test, IsTwoNestedHashes) {
  const std::string key = "0123456789abcdef";
  const std::string message = "what do ya want for nothing?";
  std::string inner = key;
  std::string outer = key;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  const Md2Digest digest = Md2(Bytes(inner + message));
  outer.append(digest.begin(), digest.end());
  EXPECT_EQ(HmacMd2(Bytes(key), Bytes(message)), Md2(Bytes(outer)));
}

TEST(HmacMd2Test, ShortKeysArePaddedAndLongOnesHashed) {
  const std::string padded = std::string("key") + std::string(13, '\0');
  EXPECT_EQ(HmacMd2(Bytes("key"), Bytes("m")), HmacMd2(Bytes(padded), Bytes("m")));
  const std::string long_key(17, 'k');
  EXPECT_EQ(HmacMd2(Bytes(long_key), Bytes("m")), HmacMd2(Md2(Bytes(long_key)), Bytes("m")));
}

IntegrityQuestion Question() {
  IntegrityQuestion question;
  question.driver_version = 13000;
  question.version = 13002;
  question.process_id = 4711;
  question.thread_id = 0xdeadbeef;
  question.cudart_table = 0x7f0000001000;
  question.integrity_table = 0x7f0000002000;
  question.integrity_function = 0x7f0000003000;
  question.seconds = 1'700'000'000;
  DeviceIdentity device;
  for (int i = 0; i < 16; ++i) device.uuid[i] = static_cast<uint8_t>(i);
  device.pci_domain = 1;
  device.pci_bus = 0x3b;
  device.pci_device = 2;
  question.devices = {device, DeviceIdentity{}};
  return question;
}

TEST(IntegrityTest, FirstTwoKindsAreConstants) {
  IntegrityQuestion question = Question();
  question.version = 13000;
  EXPECT_THAT(AnswerIntegrityQuestion(question),
              testing::ElementsAre(0x3341181C03CB675C, 0x8ED383AA1F4CD1E8));
  question.version = 13001;
  EXPECT_THAT(AnswerIntegrityQuestion(question),
              testing::ElementsAre(0x1841181C03CB675C, 0x8ED383AA1F4CD1E8));
  question.version = 13007;
  EXPECT_THAT(AnswerIntegrityQuestion(question), testing::ElementsAre(0, 0));
}

TEST(IntegrityTest, ThirdKindHashesTheLayout) {
  // 48 bytes, then 28 for each device, little endian.
  std::string message = absl::HexStringToBytes(
      "c8320000"          // 13000
      "ca320000"          // 13002
      "67120000"          // 4711
      "efbeadde"          // thread
      "00100000007f0000"  // tables and function
      "00200000007f0000"
      "00300000007f0000"
      "00f1536500000000"  // seconds
      "000102030405060708090a0b0c0d0e0f"
      "010000003b00000002000000");
  message.append(28, '\0');
  ASSERT_EQ(message.size(), 48u + 2 * 28u);
  const std::string key = absl::HexStringToBytes("146addae53a9a752aa0841360bf55a9f");
  const Md2Digest digest = HmacMd2(Bytes(key), Bytes(message));

  const std::array<uint64_t, 2> answer = AnswerIntegrityQuestion(Question());

  EXPECT_EQ(std::memcmp(answer.data(), digest.data(), 16), 0);
}

TEST(IntegrityTest, EveryInputMatters) {
  const std::array<uint64_t, 2> answer = AnswerIntegrityQuestion(Question());
  std::vector<IntegrityQuestion> others(11, Question());
  others[0].driver_version++;
  others[1].version += 10;
  others[2].process_id++;
  others[3].thread_id++;
  others[4].cudart_table++;
  others[5].integrity_table++;
  others[6].integrity_function++;
  others[7].seconds++;
  others[8].devices.pop_back();
  others[9].devices[1].uuid[15] = 1;
  others[10].devices[0].pci_domain = 0;
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_NE(AnswerIntegrityQuestion(others[i]), answer) << "input " << i;
  }
}

}  // namespace
}  // namespace fargpu::driver_abi
