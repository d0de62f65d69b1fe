// The list of instruction forms; see forms.h. Source: PTX ISA, section 9.7, in its order.
#include "softgpu/ptx/code/forms.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace softgpu::ptx {
namespace {

#define INTS "s16|u16|s32|u32|s64|u64"
#define SMALL_INTS "s8|u8|" INTS
#define WORDS "s32|u32|s64|u64"
#define BITS "b16|b32|b64"
#define HALVES "f16|f16x2"
#define BFLOATS "bf16|bf16x2"
#define ROUND "rn|rz|rm|rp"
#define WHOLE "rni|rzi|rmi|rpi"
#define ORDER "eq|ne|lt|le|gt|ge"
#define REAL_ORDER ORDER "|equ|neu|ltu|leu|gtu|geu|num|nan"
#define COMBINE "and|or|xor?"
#define SEMANTICS "~weak|volatile|relaxed|acquire|release|acq_rel|sc|mmio?"
#define SCOPE "~cta|cluster|gpu|sys?"
#define CACHE "~ca|cg|cs|lu|cv|wb|wt? ~nc?"
#define EVICT                                                                              \
  "~L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate? " \
  "~L2::evict_normal|L2::evict_first|L2::evict_last? ~L2::cache_hint? ~L2::64B|L2::128B|L2::256B?"
#define ELEMENTS "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"
#define GEOMETRY "1d|2d|3d|a1d|a2d"
#define WMMA_SHAPE "m16n16k16|m8n32k16|m32n8k16"
#define WMMA_SPACE "global|shared|shared::cta?"

constexpr FormText kForms[] = {
    // Integer arithmetic.
    {"add", INTS},
    {"add", "sat s32"},
    {"add", "u16x2|s16x2"},
    {"sub", INTS},
    {"sub", "sat s32"},
    {"mul", "lo|hi " INTS},
    {"mul", "wide s16|u16|s32|u32"},
    {"mad", "lo|hi " INTS},
    {"mad", "wide s16|u16|s32|u32"},
    {"mad", "hi sat s32"},
    {"mul24", "lo|hi s32|u32"},
    {"mad24", "lo|hi s32|u32"},
    {"mad24", "hi sat s32"},
    {"sad", INTS},
    {"div", INTS},
    {"rem", INTS},
    {"abs", "s16|s32|s64"},
    {"neg", "s16|s32|s64"},
    {"min", INTS},
    {"min", "u16x2"},
    {"min", "relu? s16x2"},
    {"min", "relu s32"},
    {"max", INTS},
    {"max", "u16x2"},
    {"max", "relu? s16x2"},
    {"max", "relu s32"},
    {"popc", "b32|b64"},
    {"clz", "b32|b64"},
    {"bfind", "shiftamt? " WORDS},
    {"fns", "b32"},
    {"brev", "b32|b64"},
    {"bfe", WORDS},
    {"bfi", "b32|b64"},
    {"szext", "clamp|wrap s32|u32"},
    {"bmsk", "clamp|wrap b32"},
    {"dp4a", "s32|u32 s32|u32"},
    {"dp2a", "lo|hi s32|u32 s32|u32"},
    // Extended precision.
    {"add", "cc " WORDS},
    {"addc", "cc? " WORDS},
    {"sub", "cc " WORDS},
    {"subc", "cc? " WORDS},
    {"mad", "lo|hi cc " WORDS},
    {"madc", "lo|hi cc? " WORDS},
    // Real arithmetic.
    {"testp", "finite|infinite|number|notanumber|normal|subnormal f32|f64"},
    {"copysign", "f32|f64"},
    {"add", ROUND "? ftz? sat? f32"},
    {"add", ROUND "? f64"},
    {"sub", ROUND "? ftz? sat? f32"},
    {"sub", ROUND "? f64"},
    {"mul", ROUND "? ftz? sat? f32"},
    {"mul", ROUND "? f64"},
    {"fma", ROUND " ftz? sat? f32"},
    {"fma", ROUND " f64"},
    {"mad", ROUND "? ftz? sat? f32"},
    {"mad", ROUND "? f64"},
    {"div", "approx|full ftz? f32"},
    {"div", ROUND " ftz? f32"},
    {"div", ROUND " f64"},
    {"abs", "ftz? f32"},
    {"abs", "f64"},
    {"neg", "ftz? f32"},
    {"neg", "f64"},
    {"min", "ftz? NaN? f32"},
    {"min", "ftz? NaN? xorsign abs f32"},
    {"min", "f64"},
    {"max", "ftz? NaN? f32"},
    {"max", "ftz? NaN? xorsign abs f32"},
    {"max", "f64"},
    {"rcp", "approx ftz? f32"},
    {"rcp", ROUND " ftz? f32"},
    {"rcp", ROUND " f64"},
    {"rcp", "approx ftz f64"},
    {"sqrt", "approx ftz? f32"},
    {"sqrt", ROUND " ftz? f32"},
    {"sqrt", ROUND " f64"},
    {"rsqrt", "approx ftz? f32|f64"},
    {"sin", "approx ftz? f32"},
    {"cos", "approx ftz? f32"},
    {"lg2", "approx ftz? f32"},
    {"ex2", "approx ftz? f32"},
    {"tanh", "approx f32"},
    // Half precision.
    {"add", "rn? ftz? sat? " HALVES},
    {"add", "rn? " BFLOATS},
    {"sub", "rn? ftz? sat? " HALVES},
    {"sub", "rn? " BFLOATS},
    {"mul", "rn? ftz? sat? " HALVES},
    {"mul", "rn? " BFLOATS},
    {"fma", "rn ftz? sat? " HALVES},
    {"fma", "rn ftz? relu " HALVES},
    {"fma", "rn relu? " BFLOATS},
    {"neg", "ftz? " HALVES},
    {"neg", BFLOATS},
    {"abs", "ftz? " HALVES},
    {"abs", BFLOATS},
    {"min", "ftz? NaN? " HALVES},
    {"min", "ftz? NaN? xorsign abs " HALVES},
    {"min", "NaN? " BFLOATS},
    {"min", "NaN? xorsign abs " BFLOATS},
    {"max", "ftz? NaN? " HALVES},
    {"max", "ftz? NaN? xorsign abs " HALVES},
    {"max", "NaN? " BFLOATS},
    {"max", "NaN? xorsign abs " BFLOATS},
    {"tanh", "approx " HALVES "|" BFLOATS},
    {"ex2", "approx " HALVES},
    {"ex2", "approx ftz " BFLOATS},
    // Comparison and selection.
    {"set", ORDER " " COMBINE " u32|s32|f32 s16|s32|s64"},
    {"set", ORDER "|lo|ls|hi|hs " COMBINE " u32|s32|f32 u16|u32|u64"},
    {"set", "eq|ne " COMBINE " u32|s32|f32 b16|b32|b64"},
    {"set", REAL_ORDER " " COMBINE " ftz? u32|s32|f32 f32"},
    {"set", REAL_ORDER " " COMBINE " u32|s32|f32 f64"},
    {"set", REAL_ORDER " " COMBINE " ftz? f16|u16|s16|u32|s32 f16"},
    {"set", REAL_ORDER " " COMBINE " ftz? f16x2|u32|s32 f16x2"},
    {"set", REAL_ORDER " " COMBINE " bf16|u16|s16|u32|s32 bf16"},
    {"set", REAL_ORDER " " COMBINE " bf16x2|u32|s32 bf16x2"},
    {"setp", ORDER " " COMBINE " s16|s32|s64"},
    {"setp", ORDER "|lo|ls|hi|hs " COMBINE " u16|u32|u64"},
    {"setp", "eq|ne " COMBINE " " BITS},
    {"setp", REAL_ORDER " " COMBINE " ftz? f32"},
    {"setp", REAL_ORDER " " COMBINE " f64"},
    {"setp", REAL_ORDER " " COMBINE " ftz? " HALVES},
    {"setp", REAL_ORDER " " COMBINE " " BFLOATS},
    {"selp", BITS "|" INTS "|f32|f64"},
    {"slct", BITS "|" INTS "|f32|f64 s32"},
    {"slct", "ftz? " BITS "|" INTS "|f32|f64 f32"},
    // Logic and shifts.
    {"and", "pred|" BITS},
    {"or", "pred|" BITS},
    {"xor", "pred|" BITS},
    {"not", "pred|" BITS},
    {"cnot", BITS},
    {"lop3", "b32"},
    {"lop3", "and|or b32"},
    {"shf", "l|r clamp|wrap b32"},
    {"shl", BITS},
    {"shr", BITS "|" INTS},
    {"prmt", "b32 f4e|b4e|rc8|ecl|ecr|rc16?"},
    // Moves and conversions.
    {"mov", "pred|" BITS "|" INTS "|f16|bf16|f32|f64"},
    {"cvt", "sat? " SMALL_INTS " " SMALL_INTS},
    {"cvt", ROUND " sat? f16|f32|f64 " SMALL_INTS},
    {"cvt", ROUND " bf16 " SMALL_INTS},
    {"cvt", WHOLE " ftz? sat? " SMALL_INTS " f32"},
    {"cvt", WHOLE " sat? " SMALL_INTS " f16|f64"},
    {"cvt", WHOLE " " SMALL_INTS " bf16"},
    {"cvt", WHOLE "? ftz? sat? f32 f32"},
    {"cvt", WHOLE "? sat? f16 f16"},
    {"cvt", WHOLE "? sat? f64 f64"},
    {"cvt", WHOLE " bf16 bf16"},
    {"cvt", "ftz? sat? f32 f16"},
    {"cvt", "ftz? sat? f32 bf16"},
    {"cvt", "sat? f64 f16"},
    {"cvt", "f64 bf16"},
    {"cvt", "ftz? sat? f64 f32"},
    {"cvt", ROUND " ftz? sat? f32 f64"},
    {"cvt", ROUND " ftz? sat? f16 f32"},
    {"cvt", "rn|rz relu? satfinite? f16 f32"},
    {"cvt", ROUND " sat? f16 f64"},
    {"cvt", ROUND " bf16 f32"},
    {"cvt", "rn|rz relu? satfinite? bf16 f32"},
    {"cvt", ROUND " bf16 f64"},
    {"cvt", "rn|rz|rm|rp bf16 f16"},
    {"cvt", "rn|rz|rm|rp f16 bf16"},
    {"cvt", "rn|rz relu? satfinite? f16x2|bf16x2 f32"},
    {"cvt", "rna|rn|rz satfinite? tf32 f32"},
    {"cvt", "pack sat s16|u16 s32"},
    {"cvt", "pack sat s8|u8 s32 b32"},
    {"cvta", "global|shared|shared::cta|local|const|param u64"},
    {"cvta", "to global|shared|shared::cta|local|const|param u64"},
    {"isspacep", "global|shared|shared::cta|local|const|param"},
    // Memory.
    {"ld", SEMANTICS " " SCOPE
                     " global|shared|shared::cta|local|const|param|param::entry|param::func? " CACHE
                     " " EVICT " v2? " ELEMENTS},
    {"ld", SEMANTICS " " SCOPE
                     " global|shared|shared::cta|local|const|param|param::entry|param::func? " CACHE
                     " " EVICT " v4 b8|b16|b32|u8|u16|u32|s8|s16|s32|f32"},
    {"ldu", "global? v2? " ELEMENTS},
    {"ldu", "global? v4 b8|b16|b32|u8|u16|u32|s8|s16|s32|f32"},
    {"st", SEMANTICS " " SCOPE " global|shared|shared::cta|local|param|param::func? " CACHE
                     " " EVICT " v2? " ELEMENTS},
    {"st", SEMANTICS " " SCOPE " global|shared|shared::cta|local|param|param::func? " CACHE
                     " " EVICT " v4 b8|b16|b32|u8|u16|u32|s8|s16|s32|f32"},
    {"atom", SEMANTICS " " SCOPE " global|shared|shared::cta? and|or|xor|exch b32|b64"},
    {"atom", SEMANTICS " " SCOPE " global|shared|shared::cta? cas b16|b32|b64"},
    {"atom", SEMANTICS " " SCOPE " global|shared|shared::cta? add u32|s32|u64|s64|f32|f64"},
    {"atom", SEMANTICS " " SCOPE " global|shared|shared::cta? min|max " WORDS},
    {"atom", SEMANTICS " " SCOPE " global|shared|shared::cta? inc|dec u32"},
    {"atom", SEMANTICS " " SCOPE " global|shared|shared::cta? add noftz f16|f16x2|bf16|bf16x2"},
    {"red", SEMANTICS " " SCOPE " global|shared|shared::cta? and|or|xor b32|b64"},
    {"red", SEMANTICS " " SCOPE " global|shared|shared::cta? add u32|s32|u64|s64|f32|f64"},
    {"red", SEMANTICS " " SCOPE " global|shared|shared::cta? min|max " WORDS},
    {"red", SEMANTICS " " SCOPE " global|shared|shared::cta? inc|dec u32"},
    {"red", SEMANTICS " " SCOPE " global|shared|shared::cta? add noftz f16|f16x2|bf16|bf16x2"},
    {"prefetch", "~global|local? ~L1|L2|L2::evict_last|L2::evict_normal?"},
    {"prefetchu", "L1"},
    {"discard", "~global? L2"},
    {"applypriority", "~global? L2::evict_normal"},
    // Asynchronous copies.
    {"cp", "async ca|cg shared|shared::cta global ~L2::cache_hint? ~L2::64B|L2::128B|L2::256B?"},
    {"cp", "async commit_group"},
    {"cp", "async wait_group"},
    {"cp", "async wait_all"},
    {"cp", "async mbarrier arrive noinc? ~shared|shared::cta? b64"},
    {"mbarrier", "init ~shared|shared::cta? b64"},
    {"mbarrier", "inval ~shared|shared::cta? b64"},
    {"mbarrier", "arrive ~release? ~cta? ~shared|shared::cta? b64"},
    {"mbarrier", "arrive noComplete ~release? ~cta? ~shared|shared::cta? b64"},
    {"mbarrier", "arrive_drop ~release? ~cta? ~shared|shared::cta? b64"},
    {"mbarrier", "arrive_drop noComplete ~release? ~cta? ~shared|shared::cta? b64"},
    {"mbarrier", "test_wait|try_wait parity? ~acquire? ~cta? ~shared|shared::cta? b64"},
    {"mbarrier", "pending_count b64"},
    // Matrices.
    {"ldmatrix", "sync aligned m8n8 x1|x2|x4 trans? ~shared|shared::cta? b16"},
    {"mma", "sync aligned m16n8k8|m16n8k16 row col f16 f16 f16 f16"},
    {"mma", "sync aligned m16n8k8|m16n8k16 row col f32 f16 f16 f32"},
    {"mma", "sync aligned m16n8k8|m16n8k16 row col f32 bf16 bf16 f32"},
    {"mma", "sync aligned m16n8k4|m16n8k8 row col f32 tf32 tf32 f32"},
    {"mma", "sync aligned m8n8k16|m16n8k16|m16n8k32 row col satfinite? s32 s8|u8 s8|u8 s32"},
    {"mma", "sync aligned m8n8k4 row col f64 f64 f64 f64"},
    {"wmma", "load a|b sync aligned row|col " WMMA_SHAPE " " WMMA_SPACE " f16|bf16|s8|u8"},
    {"wmma", "load a|b sync aligned row|col m16n16k8 " WMMA_SPACE " tf32"},
    {"wmma", "load a|b sync aligned row|col m8n8k4 " WMMA_SPACE " f64"},
    {"wmma", "load c sync aligned row|col " WMMA_SHAPE " " WMMA_SPACE " f16|f32|s32"},
    {"wmma", "load c sync aligned row|col m16n16k8 " WMMA_SPACE " f32"},
    {"wmma", "load c sync aligned row|col m8n8k4 " WMMA_SPACE " f64"},
    {"wmma", "store d sync aligned row|col " WMMA_SHAPE " " WMMA_SPACE " f16|f32|s32"},
    {"wmma", "store d sync aligned row|col m16n16k8 " WMMA_SPACE " f32"},
    {"wmma", "store d sync aligned row|col m8n8k4 " WMMA_SPACE " f64"},
    {"wmma", "mma sync aligned row|col row|col " WMMA_SHAPE " f16|f32 f16|f32"},
    {"wmma", "mma sync aligned row|col row|col " WMMA_SHAPE " f32 bf16 bf16 f32"},
    {"wmma", "mma sync aligned row|col row|col m16n16k8 f32 tf32 tf32 f32"},
    {"wmma", "mma sync aligned row|col row|col " WMMA_SHAPE " satfinite? s32 s8 s8 s32"},
    {"wmma", "mma sync aligned row|col row|col " WMMA_SHAPE " satfinite? s32 u8 u8 s32"},
    {"wmma", "mma sync aligned row|col row|col m8n8k4 rn? f64 f64 f64 f64"},
    // Textures and surfaces.
    {"tex", GEOMETRY " v4 u32|s32|f32 f32|s32"},
    {"tex", "base|level " GEOMETRY " v4 u32|s32|f32 f32"},
    {"tld4", "r|g|b|a 2d|a2d v4 u32|s32|f32 f32"},
    {"suld", "b " GEOMETRY " ~ca|cg|cs|cv? v2? b8|b16|b32|b64 trap|clamp|zero"},
    {"suld", "b " GEOMETRY " ~ca|cg|cs|cv? v4 b8|b16|b32 trap|clamp|zero"},
    {"sust", "b " GEOMETRY " ~wb|cg|cs|wt? v2? b8|b16|b32|b64 trap|clamp|zero"},
    {"sust", "b " GEOMETRY " ~wb|cg|cs|wt? v4 b8|b16|b32 trap|clamp|zero"},
    // Lanes of a warp.
    {"shfl", "sync? up|down|bfly|idx b32"},
    {"vote", "sync? all|any|uni pred"},
    {"vote", "sync? ballot b32"},
    {"match", "any|all sync b32|b64"},
    {"redux", "sync add|min|max s32|u32"},
    {"redux", "sync and|or|xor b32"},
    {"activemask", "b32"},
    // Control.
    {"bra", "~uni?"},
    {"brx", "idx ~uni?"},
    {"call", "~uni?"},
    {"ret", "~uni?"},
    {"exit", ""},
    {"trap", ""},
    {"brkpt", ""},
    {"nanosleep", "u32"},
    {"pmevent", "~mask?"},
    {"bar", "~cta? sync|arrive"},
    {"bar", "~cta? red popc u32"},
    {"bar", "~cta? red and|or pred"},
    {"bar", "warp sync"},
    {"barrier", "~cta? sync|arrive ~aligned?"},
    {"barrier", "~cta? red ~aligned? popc u32"},
    {"barrier", "~cta? red ~aligned? and|or pred"},
    {"membar", "~cta|gl|sys"},
    {"fence", "~sc|acq_rel? cta|cluster|gpu|sys"},
    {"fence", "proxy alias|async"},
    {"griddepcontrol", "launch_dependents|wait"},
    // Video: a word, four bytes or two half words at a time.
    {"vadd", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vadd", "s32|u32 s32|u32 s32|u32 sat? add"},
    {"vsub", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vsub", "s32|u32 s32|u32 s32|u32 sat? add"},
    {"vabsdiff", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vabsdiff", "s32|u32 s32|u32 s32|u32 sat? add"},
    {"vmin", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vmin", "s32|u32 s32|u32 s32|u32 sat? add"},
    {"vmax", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vmax", "s32|u32 s32|u32 s32|u32 sat? add"},
    {"vadd2", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vadd2", "s32|u32 s32|u32 s32|u32 add"},
    {"vadd4", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vadd4", "s32|u32 s32|u32 s32|u32 add"},
    {"vsub2", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vsub2", "s32|u32 s32|u32 s32|u32 add"},
    {"vsub4", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vsub4", "s32|u32 s32|u32 s32|u32 add"},
    {"vavrg2", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vavrg2", "s32|u32 s32|u32 s32|u32 add"},
    {"vavrg4", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vavrg4", "s32|u32 s32|u32 s32|u32 add"},
    {"vabsdiff2", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vabsdiff2", "s32|u32 s32|u32 s32|u32 add"},
    {"vabsdiff4", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vabsdiff4", "s32|u32 s32|u32 s32|u32 add"},
    {"vmin2", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vmin2", "s32|u32 s32|u32 s32|u32 add"},
    {"vmin4", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vmin4", "s32|u32 s32|u32 s32|u32 add"},
    {"vmax2", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vmax2", "s32|u32 s32|u32 s32|u32 add"},
    {"vmax4", "s32|u32 s32|u32 s32|u32 sat?"},
    {"vmax4", "s32|u32 s32|u32 s32|u32 add"},
    {"vset2", "s32|u32 s32|u32 " ORDER " add?"},
    {"vset4", "s32|u32 s32|u32 " ORDER " add?"},
};

using Groups = std::vector<FormGroup>;

std::unordered_map<std::string_view, std::vector<Groups>> index_made() {
  std::unordered_map<std::string_view, std::vector<Groups>> index;
  for (const FormText& text : kForms) index[text.op].push_back(form_groups(text));
  return index;
}

const std::unordered_map<std::string_view, std::vector<Groups>>& index_of_forms() {
  static const auto& kIndex = *new const auto(index_made());
  return kIndex;
}

bool matches(const Groups& groups, const std::vector<std::string_view>& mods) {
  std::uint64_t filled = 0;
  for (const std::string_view mod : mods) {
    std::size_t k = 0;
    for (; k < groups.size(); ++k) {
      const auto& names = groups[k].alternatives;
      if ((filled >> k & 1) == 0 && std::find(names.begin(), names.end(), mod) != names.end())
        break;
    }
    if (k == groups.size()) return false;
    filled |= std::uint64_t{1} << k;
  }
  for (std::size_t k = 0; k < groups.size(); ++k) {
    if (!groups[k].optional && (filled >> k & 1) == 0) return false;
  }
  return true;
}

}  // namespace

std::span<const FormText> form_texts() { return kForms; }

std::vector<FormGroup> form_groups(const FormText& text) {
  std::vector<FormGroup> groups;
  std::string_view rest = text.groups;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    FormGroup& group = groups.emplace_back();
    if (word.front() == '~') {
      group.hint = true;
      word.remove_prefix(1);
    }
    if (word.back() == '?') {
      group.optional = true;
      word.remove_suffix(1);
    }
    while (!word.empty()) {
      const std::size_t bar = std::min(word.find('|'), word.size());
      group.alternatives.push_back(word.substr(0, bar));
      word.remove_prefix(std::min(bar + 1, word.size()));
    }
  }
  return groups;
}

bool form_listed(std::string_view op, const std::vector<std::string_view>& mods) {
  const auto& index = index_of_forms();
  const auto found = index.find(op);
  if (found == index.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(),
                     [&](const Groups& groups) { return matches(groups, mods); });
}

bool form_opcode_listed(std::string_view op) { return index_of_forms().contains(op); }

}  // namespace softgpu::ptx
