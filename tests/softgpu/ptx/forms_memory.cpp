// Loads, stores, address conversions and hints: PTX ISA, section 9.7.9. A lane's cell of memory is
// what it should be, in the state space that the form names.
#include <cstring>

#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {
namespace {

Cells cells_of(const FormCase& form) {
  if (form.has("shared") || form.has("shared::cta")) return Cells::kShared;
  if (form.has("local")) return Cells::kLocal;
  if (form.has("const")) return Cells::kConst;
  if (form.has("param::func")) return Cells::kCallParam;
  if (form.has("param") || form.has("param::entry"))
    return form.op == "st" ? Cells::kCallParam : Cells::kEntryParam;
  return Cells::kGlobal;
}

u64 element_in(const Lane& lane, std::string_view type, std::size_t index) {
  const u32 bytes = bits_of(type) / 8;
  u64 bits = 0;
  std::memcpy(&bits, lane.cell + index * bytes, bytes);
  // Bytes go to registers of 32 bits.
  if (type == "s8") return static_cast<u32>(static_cast<std::int8_t>(bits));
  return bits;
}

std::size_t vector_of(const FormCase& form) { return form.has("v2") ? 2 : form.has("v4") ? 4 : 1; }

std::string vector_text(const char* const* names, std::size_t count) {
  if (count == 1) return names[0];
  std::string text = "{";
  for (std::size_t k = 0; k < count; ++k) text += (k == 0 ? "" : ", ") + std::string(names[k]);
  return text + "}";
}

std::optional<Proof> prove_load_store(const FormCase& form) {
  static constexpr const char* kResults4[] = {"D", "E", "F", "G"};
  static constexpr const char* kInputs4[] = {"A", "B", "C", "H"};
  const bool store = form.op == "st";
  if (!store && form.op != "ld" && form.op != "ldu") return std::nullopt;
  const std::string_view type = form.type();
  const std::size_t count = vector_of(form);
  const std::string policy = form.has("L2::cache_hint") ? ", %q9" : "";
  Proof proof;
  proof.cells = cells_of(form);
  proof.cell_bytes = static_cast<u32>(count) * bits_of(type) / 8;
  const std::string letters(count, letter_of(type));
  if (!store) {
    proof.results = letters;
    proof.text = form.name() + " " + vector_text(kResults4, count) + ", ADDR" + policy + ";";
    proof.reference = lanewise([=](Lane& lane) {
      for (std::size_t k = 0; k < count; ++k) lane.out[k] = element_in(lane, type, k);
    });
    return proof;
  }
  proof.operands = letters;
  proof.writes_cell = true;
  proof.text = form.name() + " ADDR, " + vector_text(kInputs4, count) + policy + ";";
  proof.reference = lanewise([=](Lane& lane) {
    const u32 bytes = bits_of(type) / 8;
    for (std::size_t k = 0; k < count; ++k) std::memcpy(lane.cell + k * bytes, &lane.in[k], bytes);
  });
  return proof;
}

std::string space_name(const FormCase& form) {
  for (const std::string_view mod : form.mods) {
    if (mod != "to" && mod != "u64") return std::string(mod);
  }
  return "global";
}

/// Reads the cell through the converted address.
std::optional<Proof> prove_cvta(const FormCase& form) {
  if (form.op != "cvta") return std::nullopt;
  const std::string space = space_name(form);
  Proof proof;
  proof.cells = cells_of(form);
  proof.cell_bytes = 4;
  proof.results = "r";
  const std::string from = space == "param" ? "mov.b64 %at, table; " : "";
  proof.text = from + "cvta." + space + ".u64 %q1, %at; ";
  if (form.has("to")) {
    proof.text += form.name() + " %q2, %q1; ld." + space + ".u32 D, [%q2];";
  } else {
    proof.text += "ld.u32 D, [%q1];";
  }
  proof.reference = lanewise([](Lane& lane) { lane.out[0] = element_in(lane, "u32", 0); });
  return proof;
}

/// Addresses of four spaces are asked whether they are of the form's.
std::optional<Proof> prove_isspacep(const FormCase& form) {
  if (form.op != "isspacep") return std::nullopt;
  Proof proof;
  const std::string space(form.mods[0]);
  const bool param = space.substr(0, 5) == "param";
  proof.results = "pppp";
  proof.before = ".shared .align 8 .b8 here[8]; .local .align 8 .b8 mine[8];\n";
  proof.text =
      "mov.b64 %q1, here; cvta.shared.u64 %q1, %q1; mov.b64 %q2, mine; cvta.local.u64 %q2, %q2; ";
  proof.text += param ? "mov.b64 %q3, table; cvta.param.u64 %q3, %q3; "
                      : "mov.b64 %q3, cells_const; cvta.const.u64 %q3, %q3; ";
  const char* const names[] = {"D", "E", "F", "G"};
  const char* const rows[] = {"%q1", "%q2", "%q3", "%rec"};
  for (int k = 0; k < 4; ++k) proof.text += form.name() + " " + names[k] + ", " + rows[k] + "; ";
  proof.reference = lanewise([=](Lane& lane) {
    lane.out[0] = space.substr(0, 6) == "shared";
    lane.out[1] = space == "local";
    lane.out[2] = space == "const" || param;
    lane.out[3] = space == "global";
  });
  return proof;
}

/// Hints change nothing.
std::optional<Proof> prove_hint(const FormCase& form) {
  const bool sized = form.op == "discard" || form.op == "applypriority";
  if (!sized && form.op != "prefetch" && form.op != "prefetchu") return std::nullopt;
  Proof proof;
  proof.cells = cells_of(form);
  proof.cell_bytes = 4;
  proof.results = "r";
  proof.text = form.name() + " ADDR" + (sized ? ", 128" : "") + "; ld." +
               (proof.cells == Cells::kLocal ? "local" : "global") + ".u32 D, ADDR;";
  proof.reference = lanewise([](Lane& lane) { lane.out[0] = element_in(lane, "u32", 0); });
  return proof;
}

}  // namespace

std::optional<Proof> prove_memory(const FormCase& form) {
  for (const Prover prover : {prove_load_store, prove_cvta, prove_isspacep, prove_hint}) {
    if (auto proof = prover(form)) return proof;
  }
  return std::nullopt;
}

}  // namespace softgpu::ptx::test
