// See evaluation.h.
#include "trainer/train/evaluation.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "trainer/model/scores.h"

namespace sluice::train {

Evaluation::Evaluation(const TrainOptions& options, Stream& stream, Network& network,
                       const Feed& feed, EvaluationPlace place)
    : options_(options),
      stream_(stream),
      network_(network),
      feed_(feed),
      place_(std::move(place)),
      batch_(static_cast<std::size_t>(options.batch), network.sample()),
      losses_(batch_.targets.size()) {}

void Evaluation::run(Communicator& comm, Communicator& replica, std::uint64_t step, bool is_last,
                     RankLine& line, JobLog& log) {
  const std::size_t total = std::min<std::size_t>(options_.eval_samples, feed_.test_count());
  if (total == 0) return;
  // One rank with all the data is one of one; the others look at none of the samples.
  const std::size_t ranks = feed_.is_scattered() ? 1 : static_cast<std::size_t>(place_.rank_count);
  const auto rank = std::min(static_cast<std::size_t>(place_.rank), ranks);
  const bool scored = is_last && is_classifier();
  said_.assign(scored ? total * classes() : 0, 0.0f);
  const Sums mine =
      part_run(total * rank / ranks, total * std::min(rank + 1, ranks) / ranks, scored);
  // Counts are exact in fp32 below 2^24.
  const float sums[2] = {static_cast<float>(mine.loss), static_cast<float>(mine.correct)};
  float all[2];
  stream_.upload(sums_.at(), sums, sizeof sums);
  comm.all_reduce(stream_, sums_.at(), 2);
  replica.all_reduce(stream_, sums_.at(), 2);
  stream_.download(all, sums_.at(), sizeof all);
  stream_.synchronize();
  const auto targets = static_cast<double>(total * network_.sample().targets);
  const double accuracy = all[1] / targets;
  line.accuracy = accuracy;
  line.test_loss = all[0] / targets;
  if (scored) logits_gather(comm);
  if (options_.place.rank != 0) return;
  JsonLine json("eval");
  json.add("step", step)
      .add("accuracy", accuracy)
      .add("loss", all[0] / targets)
      .add("samples", static_cast<std::uint64_t>(total));
  if (!is_classifier()) json.add("perplexity", std::exp(all[0] / targets));
  if (scored) scores_add(json, total, line);
  log.write(json);
}

Evaluation::Sums Evaluation::part_run(std::size_t begin, std::size_t end, bool keep) {
  Sums sums;
  stream_.zero(network_.correct(), 1);
  for (std::size_t at = begin; at < end;) {
    const std::size_t count = std::min(end - at, static_cast<std::size_t>(options_.batch));
    batch_run(at, static_cast<int>(count));
    at += count;
    if (!place_.speaks) continue;
    sums.loss = std::accumulate(losses_.data(), losses_.data() + count * network_.sample().targets,
                                sums.loss);
    if (keep) logits_keep(at - count, count);
  }
  if (!place_.speaks) return sums;
  int correct = 0;
  stream_.download(&correct, network_.correct(), sizeof correct);
  stream_.synchronize();
  sums.correct = correct;
  return sums;
}

/// Waits; then losses_ has the losses of these samples.
void Evaluation::batch_run(std::size_t begin, int count) {
  std::vector<std::uint32_t> samples(static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(begin));
  feed_.source()->test_put(samples, batch_.inputs.data(), batch_.targets.data());
  network_.batch_upload(batch_.inputs.data(), batch_.targets.data(), count);
  place_.forward(count);
  if (!place_.has_logits) return;
  network_.loss(count);
  network_.correct_add(count);
  stream_.download(losses_.data(), network_.losses(),
                   samples.size() * network_.sample().targets * sizeof(float));
  stream_.synchronize();
}

/// Of the test samples from `first` on, which the model has just seen.
void Evaluation::logits_keep(std::size_t first, std::size_t count) {
  stream_.download(&said_[first * classes()], network_.logits(), count * classes() * sizeof(float));
  stream_.synchronize();
}

/// Every rank has zeros for the samples of the others, so the sum is what each has said.
void Evaluation::logits_gather(Communicator& comm) {
  if (options_.place.rank_count == 1) return;
  const DeviceArray<float> all(said_.size());
  stream_.upload(all.at(), said_.data(), all.bytes());
  comm.all_reduce(stream_, all.at(), all.size());
  stream_.download(said_.data(), all.at(), all.bytes());
  stream_.synchronize();
}

void Evaluation::scores_add(JsonLine& json, std::size_t total, RankLine& line) {
  const int count = network_.sample().classes;
  std::vector<std::uint8_t> labels;
  for (std::uint32_t row = 0; row < total; ++row) {
    feed_.source()->test_put(std::span(&row, 1), batch_.inputs.data(), batch_.targets.data());
    labels.push_back(static_cast<std::uint8_t>(batch_.targets[0]));
  }
  const Scores scores = scores_of(softmax_of(said_, count), labels, count);
  json.add("recall", scores.recall).add("f1", scores.f1).add("roc_auc", scores.roc_auc);
  line.recall = scores.recall;
  line.f1 = scores.f1;
  line.roc_auc = scores.roc_auc;
}

}  // namespace sluice::train
