// Asynchronous copies and their barriers: PTX ISA, sections 9.7.9.25 and 9.7.13.15.
#include <algorithm>
#include <cstring>

#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {
namespace {

/// Three sizes (.ca), or one (.cg), and one copy that fills up with zeros; the source is what A and
/// B were loaded from.
std::optional<Proof> prove_copy(const FormCase& form) {
  const bool all_sizes = form.has("ca");
  if (form.op != "cp" || (!all_sizes && !form.has("cg"))) return std::nullopt;
  const std::string policy = form.has("L2::cache_hint") ? ", %q9" : "";
  Proof proof;
  proof.cells = Cells::kShared;
  proof.cell_bytes = 48;
  proof.writes_cell = true;
  proof.operands = "ddr";
  const auto copy = [&](const char* to, const char* rest) {
    proof.text += form.name() + " [%at+" + to + "], [%rec], " + rest + policy + "; ";
  };
  if (all_sizes) {
    copy("0", "4");
    copy("8", "8");
  }
  copy("16", "16");
  proof.text += "and.b32 %t8, C, 15; ";
  copy("32", "16, %t8");
  proof.text += "cp.async.wait_all;";
  proof.reference = lanewise([=](Lane& lane) {
    if (all_sizes) {
      std::memcpy(lane.cell, lane.in, 4);
      std::memcpy(lane.cell + 8, lane.in, 8);
    }
    std::memcpy(lane.cell + 16, lane.in, 16);
    std::memset(lane.cell + 32, 0, 16);
    std::memcpy(lane.cell + 32, lane.in, lane.in[2] & 15);
  });
  return proof;
}

/// A copy is there when it has been waited for.
std::optional<Proof> prove_wait(const FormCase& form) {
  if (form.op != "cp" || form.has("mbarrier")) return std::nullopt;
  Proof proof;
  proof.cells = Cells::kShared;
  proof.cell_bytes = 16;
  proof.operands = "dd";
  proof.results = "dd";
  proof.text = "cp.async.cg.shared.global [%at], [%rec], 16; ";
  if (form.has("wait_all")) {
    proof.text += form.name() + ";";
  } else {
    proof.text += "cp.async.commit_group; cp.async.wait_group 0;";
  }
  proof.text += " ld.shared.v2.u64 {D, E}, [%at];";
  proof.reference = lanewise([](Lane& lane) { std::copy_n(lane.in, 2, lane.out); });
  return proof;
}

/// A barrier per lane. D and E are what it answers in the middle and at the end.
Proof phase_proof(std::string text, u64 middle, u64 end, const std::string& results = "pp") {
  Proof proof;
  proof.cells = Cells::kShared;
  proof.cell_bytes = 8;
  proof.results = results;
  proof.text = std::move(text);
  proof.reference = lanewise([=](Lane& lane) {
    lane.out[0] = middle;
    lane.out[1] = end;
  });
  return proof;
}

std::optional<Proof> prove_phase_arrival(const FormCase& form) {
  const std::string name = form.name();
  const std::string init = "mbarrier.init.shared.b64 [%at], ";
  const std::string test = "mbarrier.test_wait.parity.shared.b64 ";
  const std::string arrive = "mbarrier.arrive.shared.b64 %q1, [%at]; ";
  if (form.op == "cp" && form.has("mbarrier")) {
    const bool counts = form.has("noinc");
    const std::string start =
        init + (counts ? "2; " : "1; ") + name + " [%at]; " + test + "D, [%at], 0; ";
    return phase_proof(start + arrive + test + "E, [%at], 0;", 0, 1);
  }
  if (form.has("noComplete")) {
    // Two of three arrivals, which may not be the last.
    return phase_proof(init + "3; " + name + " %q1, [%at], 2; " + test + "D, [%at], 0; " + arrive +
                           test + "E, [%at], 0;",
                       0, 1);
  }
  if (form.has("arrive")) {
    return phase_proof(init + "3; " + name + " %q1, [%at]; " + test + "D, [%at], 0; " + name +
                           " %q1, [%at], 2; " + test + "E, [%at], 0;",
                       0, 1);
  }
  // Who drops out is not waited for in the next phase.
  return phase_proof(init + "2; " + name + " %q1, [%at]; " + arrive + test + "D, [%at], 0; " +
                         arrive + test + "E, [%at], 1;",
                     1, 1);
}

std::string drop_address(std::string text, const FormCase& form) {
  // Without a state space the address is a generic one.
  if (form.has("shared") || form.has("shared::cta") || form.has("pending_count")) return text;
  const std::string generic = "cvta.shared.u64 %q7, %at; ";
  for (std::size_t at = 0; (at = text.find(form.name() + " ", at)) != std::string::npos;) {
    const std::size_t operand = text.find("[%at]", at);
    text.replace(operand, 5, "[%q7]");
    at = operand;
  }
  return generic + text;
}

std::optional<Proof> phase_of(const FormCase& form) {
  const std::string name = form.name();
  const std::string init = "mbarrier.init.shared.b64 [%at], ";
  const std::string arrive = "mbarrier.arrive.shared.b64 ";
  const std::string test = "mbarrier.test_wait.shared.b64 ";
  if (form.has("init"))
    return phase_proof(name + " [%at], 2; " + arrive + "%q1, [%at]; " + test + "D, [%at], %q1; " +
                           arrive + "%q2, [%at]; " + test + "E, [%at], %q1;",
                       0, 1);
  if (form.has("inval"))
    return phase_proof(init + "7; " + name + " [%at]; " + init + "1; " + arrive + "%q1, [%at]; " +
                           test + "D, [%at], %q1; " + arrive + "%q2, [%at]; " + test +
                           "E, [%at], %q2;",
                       1, 1);
  if (form.has("pending_count"))
    return phase_proof(init + "5; mbarrier.arrive.noComplete.shared.b64 %q1, [%at], 2; " + name +
                           " D, %q1; " + arrive + "%q1, [%at]; " + name + " E, %q1;",
                       5, 3, "rr");
  if (form.has("test_wait") || form.has("try_wait")) {
    const std::string state = form.has("parity") ? "0" : "%q1";
    return phase_proof(init + "2; " + arrive + "%q1, [%at]; " + name + " D, [%at], " + state +
                           "; " + arrive + "%q2, [%at]; " + name + " E, [%at], " + state + ";",
                       0, 1);
  }
  return prove_phase_arrival(form);
}

}  // namespace

std::optional<Proof> prove_async(const FormCase& form) {
  if (auto proof = prove_copy(form)) return proof;
  if (auto proof = prove_wait(form)) return proof;
  if (form.op != "mbarrier" && form.op != "cp") return std::nullopt;
  auto proof = phase_of(form);
  proof->text = drop_address(proof->text, form);
  return proof;
}

}  // namespace softgpu::ptx::test
