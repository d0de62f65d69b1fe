// Texts of the core for people: it knows users by number and GPUs by UUID.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "broker/protocol/words.h"

namespace sluice::daemon {

/// "user 1000 has ..." -> "user anna has ...".
std::string people_named(const std::string& text, const std::function<std::string(uid_t)>& name);
/// "GPU-2f44... no longer answers" -> "GPU 0 (GPU-2f44...) no longer answers"; `gpus` in the order
/// of their indexes.
std::string gpus_named(const std::string& text, const std::vector<protocol::GpuUuid>& gpus);

/// "{idle 3}" -> what `idle` says of job 3 (core/binding.h).
std::string idle_named(const std::string& text,
                       const std::function<std::string(protocol::TenantId)>& idle);
/// "train of anna": of a name that is too long for so many bytes, the user stays whole.
std::string owned_text(const std::string& name, const std::string& user, std::size_t bytes_most);

}  // namespace sluice::daemon
