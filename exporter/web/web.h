// A small web server over libmicrohttpd: a fixed set of pages, each kept for a moment. It
// bounds what clients can make it do: how many connections are open, how much a request may hold,
// how long a client may take. It must not know what is on the pages.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exporter/web/connections.h"
#include "exporter/web/listen.h"

struct MHD_Connection;
struct MHD_Daemon;

namespace sluice::exporter {

// Connections of one listening socket that are open at once; further ones wait in the kernel. One
// that has sent no whole request costs a descriptor and the memory below, and no thread.
inline constexpr unsigned kWebConnections = 128;
// Above so many open connections old ones are closed (Connections), so that there is a place for a
// new one.
inline constexpr unsigned kWebCrowd = 64;
// Line and headers of a request. A browser's request is below 2 KiB.
inline constexpr unsigned kWebRequestBytesMax = 8192;
// A client has so long to send its request, and as long to take each part of the answer.
inline constexpr unsigned kWebTimeout_ms = 3000;
// A page is made at most this often, however many clients ask. Prometheus asks once a second at
// most.
inline constexpr unsigned kWebPageKept_ms = 200;
// The longest life of a connection: Prometheus gives up on a scrape after ten seconds by default.
inline constexpr unsigned kWebLife_ms = 15000;

struct WebPage {
  const char* type;  // the Content-Type
  std::string body;
};
/// By path. Each listening socket has one thread, which makes one page after the other.
using WebPages = std::map<std::string, std::function<WebPage()>>;

class Web {
 public:
  /// Serves `pages` on `sockets`, which it takes over. A request whose Host header names another
  /// server (host_is_ours) gets status 421. Returns null, with the reason in `error`, if the
  /// threads or descriptors cannot be had.
  static std::unique_ptr<Web> start(std::vector<ListenSocket> sockets,
                                    std::vector<std::string> host_names, WebPages pages,
                                    std::string* error);
  /// Closes all connections; no page is being made afterwards.
  ~Web();
  Web(const Web&) = delete;
  Web& operator=(const Web&) = delete;

 private:
  Web(std::vector<std::string> host_names, WebPages pages);
  /// False: libmicrohttpd cannot serve `socket`.
  bool serve(ListenSocket socket);
  struct Reply;
  Reply reply_make(MHD_Connection* connection, const std::string& path, const std::string& method);
  std::shared_ptr<const WebPage> page_of(const std::string& path);
  friend struct WebCallbacks;

  const std::vector<std::string> host_names_;
  const WebPages pages_;
  struct Kept {
    std::chrono::steady_clock::time_point until;
    std::shared_ptr<const WebPage> page;
  };
  std::mutex kept_mutex_;
  std::map<std::string, Kept> kept_;
  Connections connections_;
  std::vector<MHD_Daemon*> daemons_;
};

}  // namespace sluice::exporter
