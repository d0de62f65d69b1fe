// What the process gives up once its kernel observers are loaded and before it hears from anybody:
// rights beyond those of an ordinary user, and the ways to get them back. Linux gives them by
// thread, so this comes before there is a second one.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace sluice::exporter {

/// Becomes `user` (empty: stays who it is), and keeps of its capabilities those of `keep` (CAP_...,
/// linux/capability.h) that it has. False with `error` where that cannot be done; then it must not
/// go on.
bool privileges_drop(const std::string& user, const std::vector<int>& keep, std::string* error);

/// Whether `works` returns true in a thread that has no capability in force; they are back
/// afterwards.
bool works_without_capabilities(const std::function<bool()>& works);

}  // namespace sluice::exporter
