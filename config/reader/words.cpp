// Words in messages: the spell-check of wrong names, and text from a file made fit to be shown on a
// terminal.
#include <algorithm>
#include <cctype>

#include "config/reader/keys.h"

namespace sluice::config {
namespace {

// Edit distance with transpositions ("qunatum" is one mistake), the restricted form, three rows at
// a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

/// What all the known words begin with, up to the last sign that is no letter: "--", "SLUICE_".
std::size_t common_stem(std::span<const std::string_view> known) {
  if (known.size() < 2) return 0;
  std::size_t same = known.front().size();
  for (const std::string_view candidate : known) {
    const auto differs = std::ranges::mismatch(candidate, known.front().substr(0, same)).in2;
    same = static_cast<std::size_t>(differs - known.front().begin());
  }
  while (same > 0 && std::isalnum(static_cast<unsigned char>(known.front()[same - 1])) != 0) --same;
  return same;
}

/// The word that was cut short: what all known words that go on from it go on from as well.
std::optional<std::string_view> word_completed(std::string_view word,
                                               std::span<const std::string_view> known) {
  std::optional<std::string_view> shortest;
  if (word.empty()) return shortest;
  for (const std::string_view candidate : known)
    if (candidate.starts_with(word) && (!shortest || candidate.size() < shortest->size()))
      shortest = candidate;
  const bool one = std::ranges::all_of(known, [&](std::string_view candidate) {
    return !candidate.starts_with(word) || candidate.starts_with(*shortest);
  });
  return one ? shortest : std::nullopt;
}

std::optional<std::string_view> word_mistyped(std::string_view word,
                                              std::span<const std::string_view> known) {
  std::optional<std::string_view> best;
  std::size_t best_distance = 0;
  for (const std::string_view candidate : known) {
    if (word.size() > 2 * candidate.size() + 2) continue;  // no typing mistake, and bounds the work
    const std::size_t distance = edit_distance(word, candidate);
    if (distance > std::max<std::size_t>(2, candidate.size() / 3)) continue;
    if (distance >= std::max(word.size(), candidate.size())) continue;  // nothing in common
    if (!best || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

// A stem that all have says nothing of which one is meant, so it counts for none.
std::optional<std::string_view> word_nearest(std::string_view word,
                                             std::span<const std::string_view> known) {
  const std::size_t stem = common_stem(known);
  if (stem != 0 && word.starts_with(known.front().substr(0, stem))) {
    std::vector<std::string_view> rests(known.begin(), known.end());
    for (std::string_view& rest : rests) rest.remove_prefix(stem);
    const auto near = word_nearest(word.substr(stem), rests);
    if (!near) return near;
    return known[static_cast<std::size_t>(std::ranges::find(rests, *near) - rests.begin())];
  }
  const auto completed = word_completed(word, known);
  return completed ? completed : word_mistyped(word, known);
}

std::string word_nearest(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string_view> views(known.begin(), known.end());
  return std::string(word_nearest(word, views).value_or(""));
}

std::string nearest_question(std::string_view word, const std::vector<std::string>& known) {
  const std::string near = word_nearest(word.substr(0, word.find('=')), known);
  return near.empty() ? "" : " (did you mean " + near + "?)";
}

std::string text_shown(std::string_view text, std::size_t bytes_max) {
  std::string out(text.substr(0, bytes_max));
  bool second = false;  // U+0080 to U+009F are C2 80 to C2 9F
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<unsigned char>(out[i]);
    if (second && byte >= 0x80 && byte < 0xa0) out[i - 1] = out[i] = '?';
    if (byte < 0x20 || byte == 0x7f) out[i] = '?';
    second = byte == 0xc2;
  }
  if (text.size() > bytes_max) {
    // Not in the middle of a UTF-8 sequence.
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) out.pop_back();
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0xC0) out.pop_back();
    out += "...";
  }
  return out;
}

std::string words_join(std::span<const std::string_view> words, std::string_view last) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) {
      out += i + 1 == words.size() ? " " : ", ";
      if (i + 1 == words.size()) out.append(last).append(" ");
    }
    out.append("\"").append(words[i]).append("\"");
  }
  return out;
}

}  // namespace sluice::config
