// See measure.h: the children, and what becomes of their answers.
#include "trainer/plan/measure.h"

#include <stdlib.h>
#include <time.h>

#include <cstdio>
#include <filesystem>

#include "trainer/job/child.h"

namespace sluice::train::planner {
namespace {

/// Doubles and names through a pipe: one value a line.
class Lines {
 public:
  explicit Lines(std::string text) : text_(std::move(text)) {}
  std::string next() {
    const std::size_t end = text_.find('\n', at_);
    if (end == std::string::npos) throw Failure("a child's measurements were cut short");
    std::string line = text_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }
  double number() { return std::stod(next()); }
  std::string rest() const { return text_.substr(at_); }

 private:
  const std::string text_;
  std::size_t at_ = 0;
};

std::string kernels_write(const KernelRates& rates) {
  std::string out =
      text_format("%d\n%.17g\n%.17g\n", rates.multiprocessors, rates.launch_ns, rates.host_ns);
  for (const Rate& rate : rates.rates) {
    for (const double one : rate.ns) out += text_format("%.17g\n", one);
    out += text_format("%.17g\n%.17g\n%d\n", rate.residual, rate.spread, rate.samples);
  }
  return out;
}

KernelRates kernels_read(const std::string& text) {
  Lines lines(text);
  KernelRates out;
  out.multiprocessors = static_cast<int>(lines.number());
  out.launch_ns = lines.number();
  out.host_ns = lines.number();
  for (Rate& rate : out.rates) {
    for (double& one : rate.ns) one = lines.number();
    rate.residual = lines.number();
    rate.spread = lines.number();
    rate.samples = static_cast<int>(lines.number());
  }
  return out;
}

std::string date_now() {
  const time_t now = time(nullptr);
  struct tm utc {};
  gmtime_r(&now, &utc);
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

/// Where the ranks of a measurement meet; removed with everything in it.
class MeetingFolder {
 public:
  MeetingFolder() {
    path_ = (std::filesystem::temp_directory_path() / "sluice-calibrate-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw errno_failure("making " + path_);
    for (const Algorithm one : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kBcube})
      std::filesystem::create_directory(path_ + "/" + algorithm_name(one));
  }
  ~MeetingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string facts_look() {
  const int count = device_count();
  if (count < 1) throw Failure("no GPU is visible (CUDA_VISIBLE_DEVICES)");
  const Device device(0);
  CUdevice handle = 0;
  std::size_t bytes = 0;
  driver_check(driver().cuDeviceGet(&handle, 0), "opening the GPU");
  driver_check(driver().cuDeviceTotalMem(&bytes, handle), "asking the GPU's memory");
  return text_format("%s\n%d\n%d\n%zu\n%d\n", device.name().c_str(), count,
                     device.multiprocessors(), bytes, device.is_software() ? 1 : 0);
}

}  // namespace

DeviceFacts device_facts() {
  Lines lines(children_ask(1, "looking at the GPUs", [](int) { return facts_look(); }).front());
  DeviceFacts facts;
  facts.name = lines.next();
  facts.count = std::stoi(lines.next());
  facts.multiprocessors = std::stoi(lines.next());
  facts.memory_bytes = std::stoull(lines.next());
  facts.software = lines.next() == "1";
  return facts;
}

Calibration calibration_measure(const MeasureOptions& options) {
  const auto say = [&](const std::string& line) {
    if (options.progress) options.progress(line);
  };
  Calibration out;
  out.date = date_now();
  out.engine = "none";
  out.device = device_facts();
  out.link = options.link;
  say(text_format("kernels of %s", out.device.name.c_str()));
  out.kernels = kernels_read(children_ask(1, "measuring kernels", [&](int) {
                               return kernels_write(kernels_measure(Device(0), options.quick));
                             }).front());
  for (const int ranks : options.ranks) {
    say(text_format("collectives of %d ranks", ranks));
    const MeetingFolder folder;
    const bool pairs = ranks == options.ranks.back() && ranks <= kPairRanksMax;
    const std::vector<std::string> answers = children_ask(ranks, "measuring links", [&](int rank) {
      return links_measure(options, rank, ranks, pairs, folder.path());
    });
    Lines lines(answers.front());
    out.engine = lines.next();
    for (const CollectiveRate& rate : links_fit(lines.rest(), ranks))
      out.links.rates.push_back(rate);
    for (const std::string& answer : answers)
      for (const PairRate& pair : pairs_fit(answer)) out.links.pairs.push_back(pair);
  }
  return out;
}

}  // namespace sluice::train::planner
