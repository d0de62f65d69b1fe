// The three forms of the result: a table for the terminal, results.json for programs, report.html
// for people.
#pragma once

#include <string>
#include <vector>

#include "trainer/lab/machine.h"
#include "trainer/lab/scene.h"

namespace sluice::lab {

struct LabRun {
  Machine machine;
  Settings settings;
  std::vector<SceneResult> scenes;
  std::string started;  // wall clock, ISO 8601
  std::vector<std::string> notes;
};

/// Plain text, no wider than 132 columns. A blank cell is a figure that nobody measured; a star
/// marks an inconclusive scene, with the reason below.
std::string table_format(const LabRun& run);
/// The document described in docs/lab.md.
std::string json_format(const LabRun& run);
/// Self-contained: inline style and SVG, no script, no external resource.
std::string html_format(const LabRun& run);

/// Ratio of a scene's figure to the reference's; nothing when either is missing or the reference is
/// zero.
std::optional<double> relative(std::optional<double> value, std::optional<double> reference);
/// The scene of that name, or null.
const SceneResult* scene_find(const LabRun& run, const std::string& name);
/// A job's GPU time over the window's length, by GPU; and the share that it asked for there.
struct ShareRow {
  std::string job;
  int gpu = 0;
  std::optional<double> used;    // fraction of the GPU's time
  std::optional<double> target;  // fraction: of a debug job a weight, of others a guarantee
  // Of the window, where a broker granted leases: the lease was open; work stood before a closed
  // gate (not given). In what is left the job asked for nothing (could not use).
  std::optional<double> held, waited;
};
std::vector<ShareRow> share_rows(const SceneResult& scene);

}  // namespace sluice::lab
