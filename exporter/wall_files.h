// The files of exporter/wall, as the build put them into the program.
#pragma once

namespace sluice::exporter {

extern const char kWallHtml[];
extern const char kWallCss[];
extern const char kWallJs[];

}  // namespace sluice::exporter
