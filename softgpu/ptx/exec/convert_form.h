// How the decoder tells the scalar conversion handler what to do: packed into the instruction's
// immediate.
#pragma once

#include "softgpu/ptx/code/form.h"

namespace softgpu::ptx {

struct ConvertForm {
  Type to = Type::kNone;
  Type from = Type::kNone;
  Round round = Round::kNearest;
  bool integral = false, saturate = false, flush = false, relu = false;
  bool finite = false;  // .satfinite
  u8 to_box = 4, from_box = 4;

  s64 pack() const {
    const u64 flags = static_cast<u64>(integral) | static_cast<u64>(saturate) << 1 |
                      static_cast<u64>(flush) << 2 | static_cast<u64>(relu) << 3 |
                      static_cast<u64>(finite) << 4;
    return static_cast<s64>(static_cast<u64>(to) | static_cast<u64>(from) << 8 |
                            static_cast<u64>(round) << 16 | flags << 24 |
                            static_cast<u64>(to_box) << 32 | static_cast<u64>(from_box) << 40);
  }
  static ConvertForm unpack(s64 packed) {
    const u64 bits = static_cast<u64>(packed);
    ConvertForm form;
    form.to = static_cast<Type>(bits & 0xff);
    form.from = static_cast<Type>(bits >> 8 & 0xff);
    form.round = static_cast<Round>(bits >> 16 & 0xff);
    form.integral = (bits >> 24 & 1) != 0;
    form.saturate = (bits >> 24 & 2) != 0;
    form.flush = (bits >> 24 & 4) != 0;
    form.relu = (bits >> 24 & 8) != 0;
    form.finite = (bits >> 24 & 16) != 0;
    form.to_box = static_cast<u8>(bits >> 32 & 0xff);
    form.from_box = static_cast<u8>(bits >> 40 & 0xff);
    return form;
  }
};

}  // namespace softgpu::ptx
