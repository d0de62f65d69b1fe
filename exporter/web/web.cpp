// One handler for every path, so that a path without a page cannot reach anything else.
#include "exporter/web/web.h"

#include <errno.h>
#include <microhttpd.h>
#include <zlib.h>

#include <cstring>
#include <string_view>

#include "exporter/web/host_name.h"

namespace sluice::exporter {
namespace {

// The page may load its own script and style, ask for its own data, and nothing else from anywhere;
// no other page may frame it.
constexpr std::pair<const char*, const char*> kHeaders[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cache-Control", "no-store"},
    {"Connection", "close"},
};
constexpr char kText[] = "text/plain; charset=utf-8";

const char* header_of(MHD_Connection* connection, const char* name) {
  return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

bool gzip_wanted(MHD_Connection* connection) {
  const char* encodings = header_of(connection, "Accept-Encoding");
  return encodings != nullptr && std::strstr(encodings, "gzip") != nullptr;
}

/// Returns `text` compressed; empty where zlib fails.
std::string gzip(const std::string& text) {
  constexpr int kGzipWindow = 15 + 16;  // zlib.h: 16 more writes a gzip header
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    return {};
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int rc = deflate(&stream, Z_FINISH);
  out.resize(rc == Z_STREAM_END ? stream.total_out : 0);
  deflateEnd(&stream);
  return out;
}

// libmicrohttpd keeps request, headers of the answer and a write buffer in one pool per connection.
constexpr std::size_t kConnectionBytes = 2 * kWebRequestBytesMax;

int socket_of(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

}  // namespace

struct Web::Reply {
  unsigned status;
  std::shared_ptr<const WebPage> page;
};

/// What libmicrohttpd calls.
struct WebCallbacks {
  static MHD_Result answer(void* self, MHD_Connection* connection, const char* path,
                           const char* method, const char* /*version*/, const char* /*upload*/,
                           std::size_t* /*upload_size*/, void** /*state*/) {
    auto& web = *static_cast<Web*>(self);
    web.connections_.asked(socket_of(connection));
    const Web::Reply reply = web.reply_make(connection, path, method);
    // Short pages are sent as they are.
    constexpr std::size_t kWorthIt = 1024;
    std::string packed;
    if (reply.page->body.size() >= kWorthIt && gzip_wanted(connection))
      packed = gzip(reply.page->body);
    const std::string& body = packed.empty() ? reply.page->body : packed;
    MHD_Response* response = MHD_create_response_from_buffer(
        body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", reply.page->type);
    if (!packed.empty()) MHD_add_response_header(response, "Content-Encoding", "gzip");
    for (const auto& [name, value] : kHeaders) MHD_add_response_header(response, name, value);
    const MHD_Result queued = MHD_queue_response(connection, reply.status, response);
    MHD_destroy_response(response);
    return queued;
  }

  static void connection(void* self, MHD_Connection* connection, void** /*state*/,
                         MHD_ConnectionNotificationCode code) {
    Connections& connections = static_cast<Web*>(self)->connections_;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      connections.opened(socket_of(connection));
    } else {
      connections.closed(socket_of(connection));
    }
  }
};

std::shared_ptr<const WebPage> Web::page_of(const std::string& path) {
  const std::lock_guard lock(kept_mutex_);
  Kept& kept = kept_[path];
  if (kept.page == nullptr || std::chrono::steady_clock::now() >= kept.until) {
    kept.page = std::make_shared<const WebPage>(pages_.at(path)());
    kept.until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kWebPageKept_ms);
  }
  return kept.page;
}

Web::Reply Web::reply_make(MHD_Connection* connection, const std::string& path,
                           const std::string& method) {
  const auto refusal = [](unsigned status, std::string text) {
    return Reply{status, std::make_shared<const WebPage>(WebPage{kText, std::move(text)})};
  };
  const char* host = header_of(connection, "Host");
  if (host != nullptr && !host_is_ours(host, host_names_)) {
    return refusal(MHD_HTTP_MISDIRECTED_REQUEST,
                   "this server is not known by that name; ask by an address, or add the name to "
                   "hosts in section [exporter] of sluice.toml\n");
  }
  if (!pages_.contains(path)) {
    std::string list = "nothing is served here; there is";
    for (const auto& [known, make] : pages_) list += " " + known;
    return refusal(MHD_HTTP_NOT_FOUND, list + "\n");
  }
  if (method != "GET" && method != "HEAD")
    return refusal(MHD_HTTP_METHOD_NOT_ALLOWED, "pages can only be read\n");
  return {MHD_HTTP_OK, page_of(path)};
}

Web::Web(std::vector<std::string> host_names, WebPages pages)
    : host_names_(std::move(host_names)),
      pages_(std::move(pages)),
      connections_({kWebCrowd, kWebTimeout_ms, kWebLife_ms}) {}

bool Web::serve(ListenSocket socket) {
  MHD_Daemon* daemon = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD, 0, nullptr, nullptr, WebCallbacks::answer, this,
      MHD_OPTION_LISTEN_SOCKET, socket.fd(), MHD_OPTION_CONNECTION_LIMIT, kWebConnections,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionBytes, MHD_OPTION_CONNECTION_TIMEOUT,
      kWebTimeout_ms / 1000, MHD_OPTION_NOTIFY_CONNECTION, WebCallbacks::connection, this,
      MHD_OPTION_END);
  if (daemon == nullptr) return false;
  socket.release();
  daemons_.push_back(daemon);
  return true;
}

std::unique_ptr<Web> Web::start(std::vector<ListenSocket> sockets,
                                std::vector<std::string> host_names, WebPages pages,
                                std::string* error) {
  auto web = std::unique_ptr<Web>(new Web(std::move(host_names), std::move(pages)));
  for (ListenSocket& socket : sockets) {
    if (web->serve(std::move(socket))) continue;
    *error = std::string("the web server cannot start: ") + std::strerror(errno);
    return nullptr;
  }
  return web;
}

Web::~Web() {
  for (MHD_Daemon* daemon : daemons_) MHD_stop_daemon(daemon);
}

}  // namespace sluice::exporter
