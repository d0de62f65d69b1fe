// A small web server over CivetWeb: a fixed set of pages, each made anew when it is asked for. It
// bounds what clients can make it do: how many are served at once, how much they may send, how long
// they may take. It must not know what is on the pages.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

struct mg_context;
struct mg_connection;

namespace sluice::exporter {

// Eight clients are served at once and as many more wait in line as Prometheus, a wall and a few
// people need; further ones wait in the kernel. Who has not sent a request of at most this size, or
// not taken in the answer, by then is disconnected.
inline constexpr int kWebThreads = 8;
inline constexpr int kWebQueue = 16;
inline constexpr int kWebBacklog = 64;
inline constexpr int kWebRequestBytesMax = 8192;
inline constexpr int kWebTimeout_ms = 3000;

struct WebPage {
  const char* type;  // the Content-Type
  std::string body;
};
/// Called from several threads at once.
using WebPages = std::map<std::string, std::function<WebPage()>>;

class Web {
 public:
  /// Serves `pages` by their paths on `listen`, IPv4 addresses with ports, separated by commas.
  /// Null if it cannot.
  static std::unique_ptr<Web> start(const std::string& listen, WebPages pages);
  ~Web();
  Web(const Web&) = delete;
  Web& operator=(const Web&) = delete;

  /// The port of the first address.
  int port() const;

 private:
  Web() = default;
  static int answer(mg_connection* connection, void* self);

  WebPages pages_;
  mg_context* context_ = nullptr;
};

}  // namespace sluice::exporter
