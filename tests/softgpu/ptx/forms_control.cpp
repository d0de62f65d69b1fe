// Flow and synchronisation: PTX ISA, sections 9.7.12, 9.7.13 and 9.7.19. What they do between
// warps and blocks is flow_test.cpp's; here every form does its own thing once.
#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {
namespace {

std::optional<Proof> prove_flow(const FormCase& form) {
  const std::string name = form.name();
  Proof proof = plain_proof(form, 1, 'r', 'r');
  if (form.op == "bra") {
    const bool uniform = form.has("uni");
    proof.text = std::string("and.b32 %t8, A, 1; setp.eq.u32 %p0, %t8, 0; mov.u32 D, 1; ") +
                 (uniform ? "" : "@%p0 ") + name +
                 " OVER; add.u32 D, D, A;\nOVER: add.u32 D, D, 5;";
    proof.reference = value_of([=](const u64* in) {
      const bool taken = uniform || in[0] % 2 == 0;
      return (6 + (taken ? 0 : in[0])) & 0xffffffff;
    });
    return proof;
  }
  if (form.op == "brx") {
    // With .uni every lane must take the same way.
    const bool uniform = form.has("uni");
    proof.text =
        std::string(uniform ? "mov.u32 %t8, 1;" : "and.b32 %t8, A, 3;") +
        "\nWAYS: .branchtargets W0, W1, W2, W3;\n" + name +
        " %t8, WAYS;\nW0: mov.u32 D, 10; bra MET;\nW1: mov.u32 D, 11; bra MET;\nW2: mov.u32 "
        "D, 12; bra MET;\nW3: mov.u32 D, 13;\nMET:";
    proof.reference = value_of([=](const u64* in) { return uniform ? 11 : 10 + in[0] % 4; });
    return proof;
  }
  if (form.op == "call") {
    proof.variables =
        ".visible .func (.param .b32 v) fNUMBER(.param .b32 n)\n{\n.reg .b32 %r<3>;\nld.param.b32 "
        "%r0, [n]; mad.lo.u32 %r1, %r0, 3, 1; st.param.b32 [v], %r1; ret;\n}\n";
    proof.text = "{ .param .b32 x; .param .b32 y; st.param.b32 [x], A; " + name +
                 " (y), fNUMBER, (x); ld.param.b32 D, [y]; }";
    proof.reference = value_of([](const u64* in) { return (in[0] * 3 + 1) & 0xffffffff; });
    return proof;
  }
  return std::nullopt;
}

/// Lanes that leave do not store what comes after.
std::optional<Proof> prove_end(const FormCase& form) {
  if (form.op == "trap" || form.op == "brkpt") {
    Proof proof;
    proof.text = form.name() + ";";
    proof.traps = true;
    return proof;
  }
  if (form.op != "ret" && form.op != "exit") return std::nullopt;
  Proof proof = plain_proof(form, 1, 'r', 'r');
  proof.text =
      "and.b32 %t8, A, 1; setp.eq.u32 %p0, %t8, 0; mov.u32 D, A; @%p0 " + form.name() + ";";
  proof.reference = lanewise([](Lane& lane) {
    if (lane.in[0] % 2 != 0) lane.out[0] = lane.in[0];
  });
  return proof;
}

std::optional<Proof> prove_silent(const FormCase& form) {
  static constexpr std::pair<std::string_view, const char*> kOps[] = {{"nanosleep", " 20"},
                                                                      {"pmevent", " 3"},
                                                                      {"membar", ""},
                                                                      {"fence", ""},
                                                                      {"griddepcontrol", ""}};
  for (const auto& [op, operands] : kOps) {
    if (form.op != op) continue;
    Proof proof = plain_proof(form, 1, 'r', 'r');
    proof.text = form.name() + operands + "; mov.u32 D, A;";
    proof.reference = value_of([](const u64* in) { return in[0]; });
    return proof;
  }
  return std::nullopt;
}

/// bar.red over the block: lanes below eight say yes, then all.
Proof reduction_proof(const FormCase& form) {
  Proof proof;
  const bool counts = form.has("popc");
  proof.aligned = true;
  proof.results = counts ? "rr" : "pp";
  proof.text = "setp.lt.u32 %p0, %t4, 8; setp.ge.u32 %p1, %t0, 0; " + form.name() + " D, 0, %p0; " +
               form.name() + " E, 1, 128, %p1;";
  const bool is_or = form.has("or");
  proof.reference = lanewise([=](Lane& lane) {
    lane.out[0] = counts ? 32 : u64{is_or};
    lane.out[1] = counts ? 128 : 1;
  });
  return proof;
}

/// What another warp has stored is read after the barrier.
Proof exchange_proof(const FormCase& form) {
  Proof proof;
  proof.aligned = true;
  proof.results = "r";
  proof.before = ".shared .align 4 .b8 words[512];\n";
  const std::string store =
      "mov.u32 %t8, words; shl.b32 %t9, %t0, 2; add.u32 %t9, %t9, %t8; st.shared.u32 [%t9], %t0; ";
  const std::string load =
      "xor.b32 %t9, %t0, 64; shl.b32 %t9, %t9, 2; add.u32 %t9, %t9, %t8; ld.shared.u32 D, [%t9];";
  if (!form.has("arrive")) {
    proof.text = store + form.name() + " 1; " + load;
    proof.reference = lanewise([](Lane& lane) { lane.out[0] = lane.thread ^ 64; });
    return proof;
  }
  // The lower half of the block only arrives, the upper waits for it.
  proof.text = store + "setp.lt.u32 %p0, %t0, 64; @%p0 " + form.name() +
               " 1, 128; @%p0 bra GONE; barrier.sync 1, 128; " + load + "\nGONE:";
  proof.reference = lanewise([](Lane& lane) {
    if (lane.thread >= 64) lane.out[0] = lane.thread ^ 64;
  });
  return proof;
}

std::optional<Proof> prove_barrier(const FormCase& form) {
  if (form.op != "bar" && form.op != "barrier") return std::nullopt;
  if (form.has("warp")) {
    Proof proof = plain_proof(form, 1, 'r', 'r');
    // Lanes come by two ways.
    proof.text = "and.b32 %t8, A, 1; setp.eq.u32 %p0, %t8, 0; mov.u32 D, A; @%p0 bra EVEN; " +
                 form.name() + " MASK; bra MET;\nEVEN: " + form.name() +
                 " MASK;\nMET: add.u32 D, D, 1;";
    proof.reference = value_of([](const u64* in) { return (in[0] + 1) & 0xffffffff; });
    return proof;
  }
  return form.has("red") ? reduction_proof(form) : exchange_proof(form);
}

}  // namespace

std::optional<Proof> prove_control(const FormCase& form) {
  for (const Prover prover : {prove_flow, prove_end, prove_silent, prove_barrier}) {
    if (auto proof = prover(form)) return proof;
  }
  return std::nullopt;
}

}  // namespace softgpu::ptx::test
