#include "etcd/http.hpp"

#include <algorithm>
#include <stdexcept>

namespace snowflake::etcd {
namespace {

/// A whole region is under 100 kB.
constexpr size_t kMaxBody = 1 << 20;

}  // namespace

Http::Http(Tls tls) : tls_(std::move(tls)), multi_(curl_multi_init()), easy_(curl_easy_init()) {
  if (multi_ == nullptr || easy_ == nullptr) {
    curl_easy_cleanup(easy_);
    curl_multi_cleanup(multi_);
    throw std::runtime_error("libcurl could not be initialised");
  }
  curl_multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, socket_changed);
  curl_multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
  curl_multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, timer_changed);
  curl_multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
}

Http::~Http() {
  abandon();
  curl_easy_cleanup(easy_);
  curl_multi_cleanup(multi_);
}

void Http::abandon() {
  if (busy_) curl_multi_remove_handle(multi_, easy_);
  curl_slist_free_all(headers_);
  headers_ = nullptr;
  busy_ = finished_ = false;
}

void Http::post(const std::string &url, const std::string &body, const std::string &token,
                long timeout_ms) {
  abandon();
  result_ = {};
  too_long_ = false;
  curl_error_[0] = '\0';
  curl_easy_reset(easy_);  // keeps connections

  for (const std::string &header :
       {std::string("Content-Type: application/json"),
        // A member without a leader says so at once, instead of after 7 s.
        std::string("Grpc-Metadata-hasleader: true"), std::string("Grpc-Timeout: 1S"),
        token.empty() ? std::string() : "Authorization: " + token}) {
    if (!header.empty()) headers_ = curl_slist_append(headers_, header.c_str());
  }
  curl_easy_setopt(easy_, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers_);
  curl_easy_setopt(easy_, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
  curl_easy_setopt(easy_, CURLOPT_COPYPOSTFIELDS, body.c_str());
  curl_easy_setopt(easy_, CURLOPT_TIMEOUT_MS, timeout_ms);
  curl_easy_setopt(easy_, CURLOPT_NOSIGNAL, 1L);
  // libcurl obeys http_proxy even for loopback; over HTTP/2 it kept a dead connection.
  curl_easy_setopt(easy_, CURLOPT_PROXY, "");
  curl_easy_setopt(easy_, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(easy_, CURLOPT_FOLLOWLOCATION, 0L);
#if LIBCURL_VERSION_NUM >= 0x075500
  curl_easy_setopt(easy_, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  curl_easy_setopt(easy_, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
  // Else giving up on a name that hangs waits for the resolver thread.
  curl_easy_setopt(easy_, CURLOPT_QUICK_EXIT, 1L);
#endif
  if (!tls_.ca_file.empty()) curl_easy_setopt(easy_, CURLOPT_CAINFO, tls_.ca_file.c_str());
  if (!tls_.cert_file.empty()) curl_easy_setopt(easy_, CURLOPT_SSLCERT, tls_.cert_file.c_str());
  if (!tls_.key_file.empty()) curl_easy_setopt(easy_, CURLOPT_SSLKEY, tls_.key_file.c_str());
  // Else OpenSSL asks for the pass phrase of an encrypted key at the terminal, for ever.
  curl_easy_setopt(easy_, CURLOPT_KEYPASSWD, "");
  curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, curl_error_);
  curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, body_arrived);
  curl_easy_setopt(easy_, CURLOPT_WRITEDATA, this);

  if (const CURLMcode code = curl_multi_add_handle(multi_, easy_); code != CURLM_OK)
    throw std::runtime_error(curl_multi_strerror(code));
  busy_ = true;
}

long Http::timeout_ms() const {
  if (!timer_set_) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(timer_ -
                                                                 std::chrono::steady_clock::now());
  return std::max<long>(0, static_cast<long>(left.count()));
}

void Http::on_ready(int fd, bool readable, bool writable) {
  drive(fd, (readable ? CURL_CSELECT_IN : 0) | (writable ? CURL_CSELECT_OUT : 0));
}

void Http::on_timeout() {
  timer_set_ = false;
  drive(CURL_SOCKET_TIMEOUT, 0);
}

void Http::drive(curl_socket_t fd, int events) {
  int running = 0;
  curl_multi_socket_action(multi_, fd, events, &running);
  int left = 0;
  while (const CURLMsg *message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    result_.answered = code == CURLE_OK;
    if (code == CURLE_OK) {
      curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &result_.status);
#if LIBCURL_VERSION_NUM >= 0x075400
      curl_header *date = nullptr;
      if (curl_easy_header(easy_, "Date", 0, CURLH_HEADER, -1, &date) == CURLHE_OK)
        result_.date_unix_ms = std::max<int64_t>(0, int64_t{curl_getdate(date->value, nullptr)} * 1000);
#endif
    } else {
      result_.error = too_long_        ? "an answer of more than 1 MiB"
                      : *curl_error_   ? curl_error_
                                       : curl_easy_strerror(code);
    }
    abandon();
    finished_ = true;
    break;
  }
}

bool Http::take(Result *result) {
  if (!finished_) return false;
  finished_ = false;
  *result = std::move(result_);
  return true;
}

// The callbacks are called from C, so nothing may be thrown through them.

int Http::socket_changed(CURL *, curl_socket_t fd, int what, void *self, void *) {
  auto &sockets = static_cast<Http *>(self)->sockets_;
  std::erase_if(sockets, [fd](const Socket &s) { return s.fd == fd; });
  if (what == CURL_POLL_REMOVE) return 0;
  try {
    sockets.push_back({fd, (what & CURL_POLL_IN) != 0, (what & CURL_POLL_OUT) != 0});
  } catch (...) {
    return -1;
  }
  return 0;
}

int Http::timer_changed(CURLM *, long ms, void *self) {
  auto *http = static_cast<Http *>(self);
  http->timer_set_ = ms >= 0;
  http->timer_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  return 0;
}

size_t Http::body_arrived(char *data, size_t, size_t size, void *self) {
  auto *http = static_cast<Http *>(self);
  http->too_long_ = http->result_.body.size() + size > kMaxBody;
  if (http->too_long_) return 0;
  try {
    http->result_.body.append(data, size);
  } catch (...) {
    return 0;
  }
  return size;
}

}  // namespace snowflake::etcd
