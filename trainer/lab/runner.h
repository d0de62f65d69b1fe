// Carries out a scene: starts the broker where the scene has one, the jobs as ordinary child
// processes, keeps the window, ends everything, and gathers the records that were written.
#pragma once

#include <functional>
#include <string>

#include "trainer/lab/machine.h"
#include "trainer/lab/scene.h"

namespace sluice::lab {

/// Says how far a scene is: text for people, fraction of the scene's expected time in [0, 1].
using Progress = std::function<void(const std::string& what, double fraction)>;

/// Runs `plan` and keeps every raw record in `directory` (created). Never throws; what went wrong
/// is in `problem`. `stop` is looked at often: when it becomes true the scene is ended and marked
/// as interrupted.
SceneResult scene_run(const Machine& machine, const Settings& settings, const ScenePlan& plan,
                      const std::string& directory, const volatile bool& stop,
                      const Progress& progress);

}  // namespace sluice::lab
