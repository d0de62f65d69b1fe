// Which names a web server answers to. A page of another site can make a browser resolve the site's
// own name to this machine's address (DNS rebinding) and then read every answer as if it were the
// site's. The browser still sends the site's name in the Host header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::exporter {

/// Returns whether `host`, the value of a Host header, is an IP address, "localhost", or one of
/// `names`. Ignores case, a port, and a dot at the end.
bool host_is_ours(std::string_view host, const std::vector<std::string>& names);

/// Returns this machine's name as the kernel has it (gethostname); empty where it has none.
std::string machine_name();

}  // namespace sluice::exporter
