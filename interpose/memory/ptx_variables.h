// Sums up the variables that a PTX text declares (PTX ISA, "State Spaces"): those of .global and
// .const outside of functions. Takes the text byte by byte, so it may be of any length. Pure.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sluice::interpose {

class PtxVariables {
 public:
  void feed(char c);
  /// Bytes of the variables so far, without padding, managed and .extern ones. An array whose size
  /// the declaration does not give as one number counts as nothing.
  uint64_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kWordMax = 31;  // longer words are names, whose rest does not matter
  enum class Skips : uint8_t { kNothing, kLine, kBlock, kString };

  bool skipped(char c);
  void word_end();
  void word_in_declaration();
  void punctuation(char c);
  void declarator_end();
  void statement_end();

  Skips skips_ = Skips::kNothing;
  char before_ = 0;
  char word_[kWordMax + 1] = {};
  size_t word_bytes_ = 0;
  uint32_t braces_ = 0;
  uint32_t parentheses_ = 0;
  uint32_t brackets_ = 0;
  bool declares_ = false;  // within a declaration of .global or .const
  bool is_extern_ = false;
  bool is_managed_ = false;
  bool aligns_ = false;  // the next word is an alignment
  bool named_ = false;
  bool initialises_ = false;
  bool dimension_known_ = false;  // of the brackets that are open
  uint64_t unit_bytes_ = 0;       // of the type
  uint64_t lanes_ = 1;            // .v2, .v4
  uint64_t count_ = 1;            // of the array's elements
  uint64_t bytes_ = 0;
};

}  // namespace sluice::interpose
