// The help texts. They teach by example; each command's page also names its exit codes and where
// defaults come from.
#pragma once

namespace sluice::cli {

/// Prints the page of `command` ("" = the overview) to standard output. False when there is no such
/// page.
bool help_print(const char* command);

}  // namespace sluice::cli
