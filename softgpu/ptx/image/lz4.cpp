// LZ4 block decoder; see lz4.h. A block is a chain of sequences: token, literals, offset, match.
// The input is not trusted: every length and offset is checked against both buffers.
#include "softgpu/ptx/image/lz4.h"

namespace softgpu::ptx {
namespace {

constexpr std::size_t kMatchMin = 4;

class BlockReader {
 public:
  BlockReader(const std::uint8_t* data, std::size_t bytes) : at_(data), end_(data + bytes) {}

  bool ended() const { return at_ == end_; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  std::uint8_t take() { return *at_++; }
  const std::uint8_t* skip(std::size_t count) {
    const std::uint8_t* from = at_;
    at_ += count;
    return from;
  }
  /// A 4-bit length with its extension bytes. False when the input ends in it.
  bool length(std::size_t nibble, std::size_t& value) {
    value = nibble;
    if (nibble != 15) return true;
    std::uint8_t more = 255;
    while (more == 255) {
      if (ended()) return false;
      more = take();
      value += more;
    }
    return true;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace

bool lz4_block_decode(const std::uint8_t* data, std::size_t bytes, std::size_t limit,
                      std::string& out) {
  BlockReader in(data, bytes);
  const std::size_t begin = out.size();
  while (!in.ended()) {
    const std::uint8_t token = in.take();
    std::size_t literals = 0, match = 0;
    if (!in.length(token >> 4, literals) || literals > in.left()) return false;
    if (literals > limit - (out.size() - begin)) return false;
    out.append(reinterpret_cast<const char*>(in.skip(literals)), literals);
    if (in.ended()) return true;  // the last sequence has no match
    if (in.left() < 2) return false;
    const std::size_t low = in.take();
    const std::size_t offset = low | static_cast<std::size_t>(in.take()) << 8;
    if (!in.length(token & 15, match)) return false;
    match += kMatchMin;
    if (offset == 0 || offset > out.size() - begin) return false;
    if (match > limit - (out.size() - begin)) return false;
    // Byte by byte: the match may overlap what it produces.
    for (std::size_t k = 0; k < match; ++k) out.push_back(out[out.size() - offset]);
  }
  return true;
}

}  // namespace softgpu::ptx
