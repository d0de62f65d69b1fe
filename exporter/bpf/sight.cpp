// The loader: what the kernel offers of the library and the devices is taken.
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

// Calls have numbers and arguments that the program knows on this architecture alone.
#ifdef __x86_64__
constexpr bool kCallsKnown = true;
#else
constexpr bool kCallsKnown = false;
#endif

class BpfSight : public Sight {
 public:
  ~BpfSight() override {
    ring_buffer__free(ring_);
    for (bpf_link* link : links_) bpf_link__destroy(link);
    sight_bpf__destroy(programs_);
  }

  /// With or without the devices, whose program watches the machine's system calls.
  bool load(const SightSetup& setup, bool devices, std::string* reason) {
    programs_ = sight_bpf__open();
    if (programs_ == nullptr) return failed("open", errno, reason);
    bpf_program__set_autoload(programs_->progs.sight_call, devices);
    if (const int rc = sight_bpf__load(programs_); rc != 0) return failed("load", -rc, reason);
    ring_ = ring_buffer__new(bpf_map__fd(programs_->maps.events), take, this, nullptr);
    if (ring_ == nullptr) return failed("map the ring of", errno, reason);
    if (devices && !devices_attach(setup, reason)) return false;
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
    const auto what = event->what == SIGHT_DRIVER ? Sighting::What::kDriver
                      : event->what == SIGHT_OPEN ? Sighting::What::kDeviceOpened
                                                  : Sighting::What::kDeviceCalled;
    static_cast<BpfSight*>(self)->out_->push_back({event->process, what, event->started_ns});
    return 0;
  }

  bool devices_attach(const SightSetup& setup, std::string* reason) {
    for (const std::uint32_t major : setup.majors) {
      const std::uint8_t yes = 1;
      bpf_map_update_elem(bpf_map__fd(programs_->maps.majors), &major, &yes, BPF_ANY);
    }
    bpf_link* link = bpf_program__attach(programs_->progs.sight_call);
    if (link == nullptr) return failed("attach", errno, reason);
    links_.push_back(link);
    return devices_ = true;
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
  std::string first;
  if (!setup.majors.empty() && !kCallsKnown)
    first = "calls of devices are told apart on x86-64 only";
  for (const bool devices : {true, false}) {
    if (devices && (setup.majors.empty() || !kCallsKnown)) continue;
    reason->clear();
    auto sight = std::make_unique<BpfSight>();
    if (sight->load(setup, devices, reason)) {
      if (!devices && reason->empty()) *reason = first;
      return sight;
    }
    if (devices) first = *reason;
  }
  if (reason->empty()) *reason = "there is no driver library and no device to be watched";
  return nullptr;
}

}  // namespace sluice::exporter
