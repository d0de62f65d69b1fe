// What the lanes of a warp do with each other: PTX ISA, section 9.7.9.6 (shfl) and 9.7.13 (vote,
// match, redux, activemask).
#include <algorithm>
#include <bit>

#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {
namespace {

template <class F>
void each_active(WarpLanes& warp, F body) {
  for (u32 l = 0; l < 32; ++l) {
    if ((warp.mask >> l & 1) != 0) body(l, warp.lanes[l]);
  }
}

/// PTX ISA: the pseudocode of shfl. A lane that does not take part is read as 0, which the ISA
/// leaves open.
void shuffle_reference(const FormCase& form, WarpLanes& warp) {
  const WarpLanes given = warp;
  each_active(warp, [&](u32 lane, Lane& to) {
    const u64 value = to.in[1] & 31, clamp = to.in[2] & 31, segment = to.in[2] >> 8 & 31;
    const s64 most = static_cast<s64>((lane & segment) | (clamp & ~segment & 31));
    const s64 least = static_cast<s64>(lane & segment);
    s64 from = 0;
    bool inside = false;
    if (form.has("up")) {
      from = s64{lane} - static_cast<s64>(value);
      inside = from >= most;
    } else {
      from = form.has("down")   ? s64{lane} + static_cast<s64>(value)
             : form.has("bfly") ? static_cast<s64>(lane ^ value)
                                : least | static_cast<s64>(value & ~segment & 31);
      inside = from <= most;
    }
    if (!inside) from = lane;
    const bool there = (warp.mask >> from & 1) != 0;
    to.out[0] = there ? given.lanes[static_cast<std::size_t>(from)].in[0] : 0;
    to.out[1] = inside;
  });
}

std::optional<Proof> prove_shuffle(const FormCase& form) {
  if (form.op != "shfl") return std::nullopt;
  Proof proof;
  proof.results = "rp";
  proof.operands = "rss";
  // Lane masks of every shape, with the clamps that compilers use and others.
  proof.text = "mad.lo.u32 %t8, C, 0x123, B; and.b32 C, %t8, 0x1f1f; " + form.name() +
               " D|E, A, B, C" + (form.has("sync") ? ", MASK;" : ";");
  proof.reference = [form](WarpLanes& warp) {
    for (Lane& lane : warp.lanes) lane.in[2] = (lane.in[2] * 0x123 + lane.in[1]) & 0x1f1f;
    shuffle_reference(form, warp);
  };
  return proof;
}

/// Three votes: of any predicate, of one that is true everywhere, and of its complement.
std::optional<Proof> prove_vote(const FormCase& form) {
  if (form.op != "vote") return std::nullopt;
  const bool ballot = form.has("ballot");
  const std::string members = form.has("sync") ? ", MASK; " : "; ";
  Proof proof;
  proof.operands = "p";
  proof.results = ballot ? "rrr" : "ppp";
  proof.text = "setp.ge.u32 %p0, %t0, 0; " + form.name() + " D, A" + members + form.name() +
               " E, %p0" + members + form.name() + " F, !%p0" + members;
  proof.reference = [=](WarpLanes& warp) {
    u32 votes = 0;
    each_active(warp, [&](u32 l, Lane& lane) { votes |= static_cast<u32>(lane.in[0]) << l; });
    const u32 counts[] = {votes, warp.mask, 0};
    each_active(warp, [&](u32, Lane& lane) {
      for (std::size_t k = 0; k < 3; ++k) {
        const bool all = counts[k] == warp.mask, any = counts[k] != 0;
        lane.out[k] = ballot            ? counts[k]
                      : form.has("all") ? all
                      : form.has("any") ? any
                                        : all || !any;
      }
    });
  };
  return proof;
}

std::optional<Proof> prove_match(const FormCase& form) {
  if (form.op != "match") return std::nullopt;
  const bool all = form.has("all");
  const std::string type(form.type());
  Proof proof;
  proof.operands = std::string(1, letter_of(type));
  proof.results = all ? "rprp" : "rr";
  // A few different values, and the same one everywhere.
  proof.text = "and." + type + " A, A, 3; " + form.name() + (all ? " D|E" : " D") +
               ", A, MASK; and." + type + " A, A, 0; " + form.name() + (all ? " F|G" : " E") +
               ", A, MASK;";
  proof.reference = [=](WarpLanes& warp) {
    const WarpLanes given = warp;
    each_active(warp, [&](u32, Lane& lane) {
      u32 equal = 0;
      for (u32 l = 0; l < 32; ++l) {
        const bool same = (given.lanes[l].in[0] & 3) == (lane.in[0] & 3);
        if (same && (warp.mask >> l & 1) != 0) equal |= 1u << l;
      }
      if (!all) {
        lane.out[0] = equal;
        lane.out[1] = warp.mask;
        return;
      }
      lane.out[0] = equal == warp.mask ? equal : 0;
      lane.out[1] = equal == warp.mask;
      lane.out[2] = warp.mask;
      lane.out[3] = 1;
    });
  };
  return proof;
}

std::optional<Proof> prove_redux(const FormCase& form) {
  if (form.op != "redux") return std::nullopt;
  Proof proof = plain_proof(form, 1, 'r', 'r');
  proof.text.insert(proof.text.size() - 1, ", MASK");
  const bool sign = is_signed(form.type());
  proof.reference = [=](WarpLanes& warp) {
    const auto key = [&](u64 x) { return sign ? s64{static_cast<s32>(x)} : static_cast<s64>(x); };
    bool first = true;
    u64 total = 0;
    each_active(warp, [&](u32, Lane& lane) {
      const u64 x = lane.in[0];
      if (first) {
        total = x;
      } else if (form.has("add")) {
        total = (total + x) & 0xffffffff;
      } else if (form.has("min")) {
        total = key(x) < key(total) ? x : total;
      } else if (form.has("max")) {
        total = key(x) > key(total) ? x : total;
      } else {
        total = form.has("and") ? total & x : form.has("or") ? total | x : total ^ x;
      }
      first = false;
    });
    each_active(warp, [&](u32, Lane& lane) { lane.out[0] = total; });
  };
  return proof;
}

std::optional<Proof> prove_active(const FormCase& form) {
  if (form.op != "activemask") return std::nullopt;
  Proof proof = plain_proof(form, 0, 'r', 'r');
  proof.reference = [](WarpLanes& warp) {
    each_active(warp, [&](u32, Lane& lane) { lane.out[0] = warp.mask; });
  };
  return proof;
}

}  // namespace

std::optional<Proof> prove_warp(const FormCase& form) {
  for (const Prover prover : {prove_shuffle, prove_vote, prove_match, prove_redux, prove_active}) {
    if (auto proof = prover(form)) return proof;
  }
  return std::nullopt;
}

}  // namespace softgpu::ptx::test
