// One handler for every path, so that what is not a page is nothing at all.
#include "exporter/web.h"

#include <civetweb.h>
#include <zlib.h>

#include <cstring>
#include <string_view>

namespace sluice::exporter {
namespace {

// The page may load its own script and style, ask for its own data, and nothing else from anywhere;
// nobody may frame it.
constexpr char kHeaders[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src "
    "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n";

bool gzip_wanted(mg_connection* connection) {
  const char* encodings = mg_get_header(connection, "Accept-Encoding");
  return encodings != nullptr && std::strstr(encodings, "gzip") != nullptr;
}

/// Empty where zlib cannot.
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

void page_send(mg_connection* connection, const char* status, const WebPage& page, bool with_body) {
  // Short pages are sent as they are.
  constexpr std::size_t kWorthIt = 1024;
  std::string packed;
  if (page.body.size() >= kWorthIt && gzip_wanted(connection)) packed = gzip(page.body);
  const std::string& body = packed.empty() ? page.body : packed;
  mg_printf(connection, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s%s\r\n",
            status, page.type, body.size(), packed.empty() ? "" : "Content-Encoding: gzip\r\n",
            kHeaders);
  if (with_body) mg_write(connection, body.data(), body.size());
}

}  // namespace

int Web::answer(mg_connection* connection, void* self) {
  constexpr char kText[] = "text/plain; charset=utf-8";
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string_view method = request->request_method;
  const auto& pages = static_cast<const Web*>(self)->pages_;
  const auto page = pages.find(request->local_uri);
  if (page == pages.end()) {
    std::string list = "nothing is served here; there is";
    for (const auto& [path, make] : pages) list += " " + path;
    page_send(connection, "404 Not Found", {kText, list + "\n"}, true);
    return 404;
  }
  if (method != "GET" && method != "HEAD") {
    page_send(connection, "405 Method Not Allowed", {kText, "pages can only be read\n"}, true);
    return 405;
  }
  page_send(connection, "200 OK", page->second(), method == "GET");
  return 200;
}

std::unique_ptr<Web> Web::start(const std::string& listen, WebPages pages) {
  auto web = std::unique_ptr<Web>(new Web);
  web->pages_ = std::move(pages);
  const std::string threads = std::to_string(kWebThreads), queue = std::to_string(kWebQueue);
  const std::string backlog = std::to_string(kWebBacklog);
  const std::string request_max = std::to_string(kWebRequestBytesMax);
  const std::string timeout = std::to_string(kWebTimeout_ms);
  const char* const options[] = {"listening_ports",
                                 listen.c_str(),
                                 "num_threads",
                                 threads.c_str(),
                                 "connection_queue",
                                 queue.c_str(),
                                 "listen_backlog",
                                 backlog.c_str(),
                                 "max_request_size",
                                 request_max.c_str(),
                                 "request_timeout_ms",
                                 timeout.c_str(),
                                 "enable_keep_alive",
                                 "no",
                                 nullptr};
  mg_callbacks callbacks{};
  // CivetWeb would write what it dislikes about requests to stderr, as often as anybody likes.
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
  mg_init_library(MG_FEATURES_DEFAULT);
  web->context_ = mg_start(&callbacks, nullptr, const_cast<const char**>(options));
  if (web->context_ == nullptr) {
    mg_exit_library();
    return nullptr;
  }
  mg_set_request_handler(web->context_, "**", answer, web.get());
  return web;
}

Web::~Web() {
  if (context_ == nullptr) return;
  mg_stop(context_);
  mg_exit_library();
}

int Web::port() const {
  mg_server_port ports[1] = {};
  return mg_get_server_ports(context_, 1, ports) > 0 ? ports[0].port : 0;
}

}  // namespace sluice::exporter
