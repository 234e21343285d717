#include "etcd/client.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace snowflake::etcd {
namespace {

/// Throws std::runtime_error unless the path names a regular file, or nothing that is there: opening a
/// pipe could wait for ever. The settings' own checks have not seen what took a file's place since.
void refuse_pipe(const char *what, const std::string &path) {
  struct stat found;
  if (!path.empty() && stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode))
    throw std::runtime_error(std::string(what) + " file \"" + path + "\" is not a regular file");
}

/// The first line of a password file, without its end. Throws std::runtime_error.
std::string read_password(const std::string &path) {
  if (path.empty())
    throw std::runtime_error("snowflake.etcd_user is set, snowflake.etcd_password_file is not");
  refuse_pipe("password", path);
  const std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(std::fopen(path.c_str(), "r"),
                                                              std::fclose);
  char line[1024] = "";
  if (!file)
    throw std::runtime_error("password file \"" + path + "\": " + std::strerror(errno));
  if (std::fgets(line, sizeof line, file.get()) == nullptr)
    throw std::runtime_error("password file \"" + path + "\" is empty");
  const std::string text(line);
  return text.substr(0, text.find_first_of("\r\n"));
}

}  // namespace

Client::Client(ClientSettings settings) : settings_(std::move(settings)), http_(settings_.tls) {
  if (settings_.endpoints.empty()) throw std::runtime_error("no endpoint");
}

void Client::send(const Request &request) {
  request_ = request;
  authenticated_now_ = false;
  next_step();
}

/// Without a token that is needed: asks for one. Else: the request itself.
void Client::next_step() {
  fault_.clear();
  authenticating_ = !settings_.user.empty() && token_.empty() && !auth_is_off_;
  try {
    refuse_pipe("CA", settings_.tls.ca_file);
    refuse_pipe("certificate", settings_.tls.cert_file);
    refuse_pipe("key", settings_.tls.key_file);
    if (authenticating_) {
      authenticated_now_ = true;
      http_.post(endpoint() + "/v3/auth/authenticate",
                 authenticate_body(settings_.user, read_password(settings_.password_file)), "",
                 kRequestTimeoutMs);
    } else {
      http_.post(endpoint() + path_of(request_.kind), body_of(request_, settings_.names), token_,
                 kRequestTimeoutMs);
    }
  } catch (const std::runtime_error &fault) {
    fault_ = fault.what();
  }
}

bool Client::take_reply(Reply *reply, std::string *error) {
  Http::Result result;
  if (!busy() || (fault_.empty() && !http_.take(&result))) return false;
  error->clear();
  *reply = {};
  reply->failed = true;

  if (!fault_.empty()) {
    *error = std::move(fault_);
    fault_.clear();
  } else if (!result.answered) {
    *error = result.error;
  } else if (authenticating_) {
    *error = read_token(result.status, result.body, &token_);
    if (error->empty()) {
      next_step();
      return false;
    }
    if (error->find("authentication is not enabled") != std::string::npos) {
      // The user may be set before etcd asks for it. Once it does, it refuses what has no token.
      auth_is_off_ = true;
      next_step();
      return false;
    }
    *error = "user \"" + settings_.user + "\" gets no token: " + *error;
  } else {
    Reading reading = read_answer(request_, settings_.names, result.status, result.body);
    if (reading.token_refused && !settings_.user.empty() && !authenticated_now_) {
      token_.clear();
      auth_is_off_ = false;
      next_step();
      return false;
    }
    *reply = reading.reply;
    reply->date_unix_ms = result.date_unix_ms;
    *error = reading.fault;
  }

  reply->serial = request_.serial;
  const RequestKind request_kind = request_.kind;
  request_ = {};
  if (!reply->failed) {
    if (request_kind == failed_kind_) failed_in_a_row_ = 0;
    return true;
  }
  failed_kind_ = request_kind;
  *error = "etcd at " + endpoint() + ": " + *error;
  token_.clear();
  auth_is_off_ = false;
  endpoint_ = (endpoint_ + 1) % settings_.endpoints.size();
  reply->another_endpoint = ++failed_in_a_row_ < settings_.endpoints.size();
  if (!reply->another_endpoint) failed_in_a_row_ = 0;
  return true;
}

}  // namespace snowflake::etcd
