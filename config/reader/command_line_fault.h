// What CLI11 found wrong with a command line, in words of our own where its words tell a user
// nothing. Included by the files that parse with CLI11; it is a header because CLI11 is one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "config/reader/keys.h"

namespace sluice::config {

/// "there is no option '--secnods' (did you mean --seconds?)". A word that is no option comes last.
inline std::string unknown_words_fault(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  std::string wrong = words.empty() ? "" : words.front();
  for (const std::string& word : words)
    if (!wrong.starts_with("-") && word.starts_with("-")) wrong = word;
  if (!wrong.starts_with("-")) return "there is a word too many, '" + wrong + "'";
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return "there is no option '" + wrong + "'" + nearest_question(wrong, names);
}

/// `app`: what parsed, and threw `error`. Returns one clause with no full stop at its end.
inline std::string command_line_fault(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return unknown_words_fault(app);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return error.what();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 1 && option->count() > 1)
      return option->get_name() + " is given " + std::to_string(option->count()) +
             " times; give it once";
  }
  // The library's text begins with the option's name.
  const std::string text = error.what();
  return text.substr(0, text.find(':')) + " takes a value";
}

}  // namespace sluice::config
