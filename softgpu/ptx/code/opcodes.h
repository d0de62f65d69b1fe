// What the opcode tables share among themselves.
#pragma once

#include <optional>

#include "softgpu/ptx/code/decoder.h"

namespace softgpu::ptx {

std::optional<Compare> compare_of(std::string_view name);
void cvt_pack(Decoder& d, const Statement& s);
void lop3_predicate(Decoder& d, const Statement& s);
/// add, min and max of two 16-bit integers, or with .relu; false when it is none of these.
bool packed_integer(Decoder& d, const Statement& s);

/// An address that must be in shared memory: a row and what is added to it.
struct SharedAddress {
  s32 row = 0;
  s64 offset = 0;
  u8 flags = 0;  // kCopyWide, kPhaseGeneric
};
SharedAddress shared_address(Decoder& d, const Operand& o, bool generic);
/// The register inside an address operand.
Operand register_of(const Operand& address);

/// Row a, imm and the mode of an address operand.
AddressMode address_of(Decoder& d, const Operand& o, Space space, Inst& inst);

}  // namespace softgpu::ptx
