// The loader: what the kernel offers of the two is taken.
#include "exporter/bpf/sight.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <string.h>

#include "exporter/bpf/loading.h"
#include "exporter/bpf/sight_shared.h"
#include "sight.skel.h"

namespace sluice::exporter {
namespace {

// What every program that computes calls once, whatever else it does. Not the launches: a probe
// costs them a microsecond each.
constexpr const char* kCalls[] = {"cuInit", "cuDevicePrimaryCtxRetain", "cuCtxCreate_v2",
                                  "cuCtxCreate_v3", "cuCtxCreate_v4"};

/// How opens of devices are seen; none is tried where there are no devices.
enum class Opens : std::uint8_t { kByFunction, kByCall, kNot };

class BpfSight : public Sight {
 public:
  ~BpfSight() override {
    ring_buffer__free(ring_);
    for (bpf_link* link : links_) bpf_link__destroy(link);
    sight_bpf__destroy(programs_);
  }

  bool load(const SightSetup& setup, Opens opens, std::string* reason) {
    programs_ = sight_bpf__open();
    if (programs_ == nullptr) return failed("open", errno, reason);
    bpf_program* const by[] = {programs_->progs.sight_device, programs_->progs.sight_call};
    for (const Opens one : {Opens::kByFunction, Opens::kByCall})
      bpf_program__set_autoload(by[static_cast<int>(one)], one == opens);
    if (const int rc = sight_bpf__load(programs_); rc != 0) return failed("load", -rc, reason);
    ring_ = ring_buffer__new(bpf_map__fd(programs_->maps.events), take, this, nullptr);
    if (ring_ == nullptr) return failed("map the ring of", errno, reason);
    if (opens != Opens::kNot) devices_attach(setup, by[static_cast<int>(opens)], reason);
    if (opens != Opens::kNot && !devices_) return false;
    if (!setup.driver.empty()) driver_attach(setup.driver, reason);
    return driver_ || devices_;
  }

  void read(std::vector<Sighting>& out) override {
    out_ = &out;
    ring_buffer__consume(ring_);
    out_ = nullptr;
  }
  bool sees_driver() const override { return driver_; }
  bool sees_devices() const override { return devices_; }

 private:
  static bool failed(const char* step, int error, std::string* reason) {
    *reason = bpf_failure(step, error);
    return false;
  }

  static int take(void* self, void* record, std::size_t) {
    const auto* event = static_cast<const sight_event*>(record);
    static_cast<BpfSight*>(self)->out_->push_back(
        {event->process, event->what == SIGHT_DRIVER, event->what == SIGHT_DEVICE});
    return 0;
  }

  void devices_attach(const SightSetup& setup, bpf_program* program, std::string* reason) {
    for (const std::uint32_t major : setup.majors) {
      const std::uint8_t yes = 1;
      bpf_map_update_elem(bpf_map__fd(programs_->maps.majors), &major, &yes, BPF_ANY);
    }
    bpf_link* link = bpf_program__attach(program);
    if (link == nullptr) {
      failed("attach", errno, reason);
      return;
    }
    links_.push_back(link);
    devices_ = true;
  }

  void driver_attach(const std::string& path, std::string* reason) {
    for (const char* call : kCalls) {
      bpf_uprobe_opts options{};
      options.sz = sizeof options;
      options.func_name = call;
      bpf_link* link = bpf_program__attach_uprobe_opts(programs_->progs.sight_driver, -1,
                                                       path.c_str(), 0, &options);
      if (link == nullptr) {
        // Older drivers have not all of them.
        if (!driver_) *reason = "calls of " + path + " cannot be watched: " + strerror(errno);
        continue;
      }
      links_.push_back(link);
      driver_ = true;
    }
  }

  sight_bpf* programs_ = nullptr;
  ring_buffer* ring_ = nullptr;
  std::vector<bpf_link*> links_;
  bool driver_ = false;
  bool devices_ = false;
  std::vector<Sighting>* out_ = nullptr;  // during read
};

}  // namespace

std::unique_ptr<Sight> sight_open(const SightSetup& setup, std::string* reason) {
  if (!bpf_possible(reason)) return nullptr;
  // Each kernel takes the best that it has.
  std::unique_ptr<BpfSight> sight;
  std::string first;
  for (const Opens opens : {Opens::kByFunction, Opens::kByCall, Opens::kNot}) {
    if (opens != Opens::kNot && setup.majors.empty()) continue;
    reason->clear();
    sight = std::make_unique<BpfSight>();
    if (sight->load(setup, opens, reason)) {
      if (opens == Opens::kNot && reason->empty()) *reason = first;
      return sight;
    }
    first = *reason;
  }
  if (reason->empty()) *reason = "there is no driver library and no device to be watched";
  return nullptr;
}

}  // namespace sluice::exporter
