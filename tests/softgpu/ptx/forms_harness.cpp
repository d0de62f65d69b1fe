// Runs forms: a kernel for each, its lanes' operands and memory, and the comparison. See forms.h.
#include <bit>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "tests/softgpu/ptx/forms.h"
#include "tests/softgpu/ptx/forms_values.h"
#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

constexpr u32 kBlocks = 4, kThreads = 128, kLanes = kBlocks * kThreads;
constexpr std::size_t kBatch = 64;
constexpr u32 kPartial = 0xdb6db6d6u;  // two of three lanes

/// A lane as the kernel sees it.
struct Record {
  u64 in[kInputs], out[kResults];
};

constexpr const char* kInputNames[] = {"A", "B", "C", "H"};
constexpr const char* kResultNames[] = {"D", "E", "F", "G"};

const char* register_type(char letter) {
  switch (letter) {
    case 'p':
      return ".pred";
    case 'h':
    case 'H':
    case 'K':
      return ".b16";
    case 'f':
      return ".f32";
    case 'd':
      return ".b64";
    case 'g':
    case 'M':
      return ".f64";
    default:
      return ".b32";
  }
}

std::string memory_type(char letter) {
  const std::string type = register_type(letter);
  return letter == 'p' ? "u32" : type.substr(1);
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
  return text;
}

std::string load_register(const char* name, char letter, std::size_t slot) {
  const std::string from = ", [%rec+" + std::to_string(8 * slot) + "];\n";
  if (letter != 'p') return "ld.global." + memory_type(letter) + " " + name + from;
  return "ld.global.u32 %t7" + from + "setp.ne.u32 " + name + ", %t7, 0;\n";
}
std::string store_register(const char* name, char letter, std::size_t slot) {
  const std::string to = "[%rec+" + std::to_string(8 * slot) + "], ";
  if (letter != 'p') return "st.global." + memory_type(letter) + " " + to + name + ";\n";
  return std::string("selp.u32 %t7, 1, 0, ") + name + ";\nst.global.u32 " + to + "%t7;\n";
}

/// Moves the cell byte by byte between global memory and where the form wants it.
std::string move_cell(const Proof& proof, bool in) {
  const bool call = proof.cells == Cells::kCallParam;
  const std::string space = call ? "param" : proof.cells == Cells::kShared ? "shared" : "local";
  const std::string base = call ? "area" : "%at";
  std::string text;
  for (u32 k = 0; k < proof.cell_bytes; ++k) {
    const std::string there = "[" + base + "+" + std::to_string(k) + "]";
    const std::string global = "[%cell+" + std::to_string(k) + "]";
    text += in ? "ld.global.u8 %t7, " + global + "; st." + space + ".u8 " + there + ", %t7;\n"
               : "ld." + space + ".u8 %t7, " + there + "; st.global.u8 " + global + ", %t7;\n";
  }
  return text;
}

std::string cell_text(const Proof& proof, bool in) {
  const std::string stride = "mul.wide.u32 %at, %t0, %stride;\n";
  switch (proof.cells) {
    case Cells::kGlobal:
      return in ? "mov.b64 %at, %cell;\n" : "";
    case Cells::kShared:
      return in ? stride + "mov.b64 %q8, cells_shared; add.s64 %at, %at, %q8;\n" +
                      move_cell(proof, true)
                : "bar.sync 0;\n" + move_cell(proof, false);
    case Cells::kLocal:
      return in ? "mov.b64 %at, cells_local;\n" + move_cell(proof, true) : move_cell(proof, false);
    case Cells::kConst:
      return in ? "and.b32 %t7, %t0, 15; mul.wide.u32 %at, %t7, 64; mov.b64 %q8, cells_const; "
                  "add.s64 %at, %at, %q8;\n"
                : "";
    case Cells::kCallParam:
      return move_cell(proof, in);
    default:
      return "";
  }
}

std::string declared_cells(const Proof& proof) {
  switch (proof.cells) {
    case Cells::kShared:
      return ".shared .align 64 .b8 cells_shared[" + std::to_string(kThreads * kCellBytes) + "];\n";
    case Cells::kLocal:
      return ".local .align 64 .b8 cells_local[64];\n";
    case Cells::kCallParam:
      return ".param .align 16 .b8 area[64];\n";
    default:
      return "";
  }
}

std::string kernel_for(const Proof& proof, std::size_t number) {
  std::string text =
      proof.variables + "\n.visible .entry k" + std::to_string(number) +
      "(.param .u64 records, .param .u64 cells, .param .u32 stride, .param .u32 mask, "
      ".param .align 64 .b8 table[64])\n{\n.reg .pred %p<8>; .reg .b32 %t<12>; .reg .b16 %h<8>; "
      ".reg .f32 %f<8>; .reg .b64 %q<12>; .reg .b64 %rec, %cell, %at; .reg .b32 %mask, %stride;\n" +
      declared_cells(proof);
  for (std::size_t k = 0; k < proof.operands.size(); ++k)
    text += std::string(".reg ") + register_type(proof.operands[k]) + " " + kInputNames[k] + ";\n";
  for (std::size_t k = 0; k < proof.results.size(); ++k)
    text += std::string(".reg ") + register_type(proof.results[k]) + " " + kResultNames[k] + ";\n";
  text += proof.before;
  text +=
      "mov.u32 %t0, %tid.x; mov.u32 %t1, %ctaid.x; mov.u32 %t2, %ntid.x; mad.lo.s32 %t3, %t1, "
      "%t2, %t0;\nld.param.u64 %rec, [records]; mul.wide.u32 %q0, %t3, 64; add.s64 %rec, %rec, "
      "%q0;\nld.param.u64 %cell, [cells]; ld.param.u32 %stride, [stride]; mul.wide.u32 %q0, %t3, "
      "%stride; add.s64 %cell, %cell, %q0;\nld.param.u32 %mask, [mask];\n";
  for (std::size_t k = 0; k < proof.operands.size(); ++k)
    text += load_register(kInputNames[k], proof.operands[k], k);
  for (std::size_t k = 0; k < proof.results.size(); ++k)
    text += load_register(kResultNames[k], proof.results[k], kInputs + k);
  text += cell_text(proof, true);
  // Cells that lanes share are set by whoever comes last: all of them to the same.
  if (proof.same_cell) text += "bar.sync 0;\n";
  text +=
      "mov.u32 %t4, %laneid; shr.u32 %t5, %mask, %t4; and.b32 %t5, %t5, 1; setp.eq.u32 %p7, %t5, "
      "0;\n@%p7 bra DONE;\n";
  const std::string address = proof.cells == Cells::kEntryParam  ? "[table]"
                              : proof.cells == Cells::kCallParam ? "[area]"
                                                                 : "[%at]";
  text += replaced(replaced(proof.text, "ADDR", address), "MASK", "%mask") + "\nDONE:\n";
  if (proof.writes_cell) text += cell_text(proof, false);
  for (std::size_t k = 0; k < proof.results.size(); ++k)
    text += store_register(kResultNames[k], proof.results[k], kInputs + k);
  return replaced(text + "ret;\n}\n", "NUMBER", std::to_string(number));
}

u8 const_byte(std::size_t at) { return static_cast<u8>(at * 37 + at / 16 * 11 + 5); }

std::string module_for(const std::vector<Proof>& proofs) {
  std::string text = ".const .align 64 .b8 cells_const[1024] = {";
  for (std::size_t k = 0; k < 1024; ++k)
    text += (k == 0 ? "" : ",") + std::to_string(const_byte(k));
  text += "};\n";
  for (std::size_t k = 0; k < proofs.size(); ++k) text += kernel_for(proofs[k], k);
  return ptx_module(text);
}

/// Rows of ordinary values take shorter ways in the interpreter than rows with an odd one: every
/// third warp is wild in all lanes, every third in one lane, every third in none.
u64 lane_value(char letter, u32 lane, std::mt19937_64& random) {
  const u32 warp = lane / 32;
  const bool wild = warp % 3 == 0 || (warp % 3 == 1 && lane % 32 == warp % 32);
  return wild ? wild_value(letter, random) : tame_value(letter, random);
}

class FormRun {
 public:
  FormRun(const FormCase& form, const Proof& proof) : form_(form), proof_(proof) {
    std::mt19937_64 random(std::hash<std::string>()(form.name()));
    lanes_.resize(kLanes);
    for (u32 n = 0; n < kLanes; ++n) {
      Lane& lane = lanes_[n];
      lane.thread = n % kThreads;
      for (std::size_t k = 0; k < kInputs; ++k)
        lane.in[k] = k < proof.operands.size() ? lane_value(proof.operands[k], n, random) : 0;
      for (std::size_t k = 0; k < kResults; ++k)
        lane.out[k] = k < proof.results.size() ? wild_value(proof.results[k], random) : 0;
      for (std::size_t k = 0; k < kCellBytes; ++k)
        lane.cell[k] = static_cast<u8>(random() % 4 == 0 ? 0xff : random());
      if (!proof.cell_letters.empty()) fill_cell(lane, proof.cell_letters[n % 32 / 16], random);
      if (proof.cells == Cells::kConst) {
        for (std::size_t k = 0; k < kCellBytes; ++k)
          lane.cell[k] = const_byte(n % 16 * kCellBytes + k);
      }
      if (proof.cells == Cells::kEntryParam) std::memcpy(lane.cell, lanes_[0].cell, kCellBytes);
    }
    if (proof.same_cell) share_cells();
  }

  /// `stride`: bytes from one lane's cell to the next one's.
  void check(const Module& module, std::size_t number, u32 mask, u32 stride) {
    std::vector<Record> records(kLanes);
    std::vector<u8> cells(std::size_t{kLanes} * kCellBytes + kCellBytes);
    for (u32 n = 0; n < kLanes; ++n) {
      std::memcpy(records[n].in, lanes_[n].in, sizeof lanes_[n].in);
      std::memcpy(records[n].out, lanes_[n].out, sizeof lanes_[n].out);
      std::memcpy(aligned(cells) + std::size_t{n} * stride, lanes_[n].cell,
                  std::min(stride, u32{kCellBytes}));
    }
    launch(module, number, mask, stride, records.data(), aligned(cells));
    if (::testing::Test::HasFatalFailure() || proof_.traps) return;
    for (u32 first = 0; first < kLanes; first += 32) {
      WarpLanes warp;
      warp.mask = mask;
      std::copy_n(lanes_.begin() + first, 32, warp.lanes.begin());
      const WarpLanes given = warp;
      proof_.reference(warp);
      for (u32 l = 0; l < 32; ++l) {
        compare(given.lanes[l], warp.lanes[l], records[first + l],
                aligned(cells) + std::size_t{first + l} * stride, first + l);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }

 private:
  static u8* aligned(std::vector<u8>& bytes) {
    return reinterpret_cast<u8*>((reinterpret_cast<u64>(bytes.data()) + 63) / 64 * 64);
  }

  static void fill_cell(Lane& lane, char letter, std::mt19937_64& random) {
    const std::size_t bytes = letter == 'M' ? 8 : 4;
    for (std::size_t k = 0; k < kCellBytes; k += bytes) {
      const u64 word = wild_value(letter, random);
      std::memcpy(lane.cell + k, &word, bytes);
    }
  }

  void share_cells() {
    for (u32 n = 0; n < kLanes; ++n)
      std::memcpy(lanes_[n].cell, lanes_[n / kThreads * kThreads].cell, kCellBytes);
  }

  void launch(const Module& module, std::size_t number, u32 mask, u32 stride, Record* records,
              u8* cells) {
    struct Table {
      alignas(64) u8 bytes[64];
    } table;
    std::memcpy(table.bytes, lanes_[0].cell, sizeof table.bytes);
    const Arguments arguments =
        Arguments().add(records).add(cells).add(stride).add(mask).add(table);
    TestHost host;
    for (u32 n = 0; proof_.image.has_value() && n < kLanes; ++n) {
      const std::byte* cell = reinterpret_cast<const std::byte*>(cells) + std::size_t{n} * stride;
      Image image = *proof_.image;
      image.base = cell;
      host.images.emplace(reinterpret_cast<u64>(cell), image);
    }
    Launch launch;
    launch.grid.x = kBlocks;
    launch.block.x = kThreads;
    launch.params = arguments.data();
    const Outcome outcome =
        launch_run(*module_kernel(module, "k" + std::to_string(number)), launch, host);
    ASSERT_EQ(outcome.fault, proof_.traps ? Fault::kTrap : Fault::kNone)
        << form_.name() << ": " << outcome.fault_text;
  }

  bool is_near(u64 got, u64 want, char letter) const {
    if (proof_.relative == 0 && proof_.absolute == 0) return false;
    if (letter == 'X' || letter == 'Y') {
      const char half = letter == 'X' ? 'H' : 'K';
      return (u16(got) == u16(want) || is_near(u16(got), u16(want), half)) &&
             (got >> 16 == want >> 16 || is_near(got >> 16, want >> 16, half));
    }
    const double x = real_value(got, letter), y = real_value(want, letter);
    return std::fabs(x - y) <= proof_.relative * std::fabs(y) + proof_.absolute;
  }

  void compare(const Lane& given, const Lane& want, const Record& got, const u8* cell, u32 lane) {
    for (std::size_t k = 0; k < proof_.results.size(); ++k) {
      const char letter = proof_.results[k];
      if (got.out[k] == want.out[k] || is_near(got.out[k], want.out[k], letter)) continue;
      FAIL() << form_.name() << " lane " << lane << std::hex << " gives " << kResultNames[k]
             << " = " << got.out[k] << ", not " << want.out[k] << "; A=" << given.in[0]
             << " B=" << given.in[1] << " C=" << given.in[2] << " H=" << given.in[3];
    }
    if (!proof_.writes_cell) return;
    for (u32 k = 0; k < proof_.cell_bytes; ++k) {
      ASSERT_EQ(u32{cell[k]}, u32{want.cell[k]})
          << form_.name() << " lane " << lane << ", byte " << k << " of the cell" << std::hex
          << "; A=" << given.in[0] << " B=" << given.in[1];
    }
  }

  const FormCase& form_;
  const Proof& proof_;
  std::vector<Lane> lanes_;
};

std::set<u32> strides_of(const Proof& proof) {
  if (proof.cells == Cells::kGlobal || proof.cells == Cells::kShared)
    return {proof.same_cell ? 0 : proof.cell_bytes, proof.same_cell ? 0 : u32{kCellBytes}};
  return {kCellBytes};
}

}  // namespace

void check_forms(const std::vector<FormCase>& forms, const char* isa) {
  ::setenv("SOFTGPU_ISA", isa, 1);
  for (std::size_t first = 0; first < forms.size(); first += kBatch) {
    const std::size_t count = std::min(kBatch, forms.size() - first);
    std::vector<Proof> proofs;
    for (std::size_t k = 0; k < count; ++k) {
      const auto proof = proof_of(forms[first + k]);
      ASSERT_TRUE(proof.has_value()) << "no proof for " << forms[first + k].name();
      proofs.push_back(*proof);
    }
    HeapMemory memory;
    const LoadResult loaded = module_load(module_for(proofs), memory);
    ASSERT_EQ(loaded.status, LoadStatus::kOk) << loaded.log;
    ASSERT_EQ(loaded.log, "");
    for (std::size_t k = 0; k < count; ++k) {
      FormRun run(forms[first + k], proofs[k]);
      for (const u32 stride : strides_of(proofs[k])) {
        run.check(*loaded.module, k, 0xffffffffu, stride);
        if (!proofs[k].aligned) run.check(*loaded.module, k, kPartial, stride);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  ::unsetenv("SOFTGPU_ISA");
}

}  // namespace softgpu::ptx::test
