// The three plots of the report as inline SVG text.
#pragma once

#include <string>
#include <vector>

namespace sluice::lab {

struct Bar {
  std::string label;
  double value = 0;
  std::string text;  // printed at its end
  std::string color;
};
/// Horizontal bars on a common axis from 0 to the largest value.
std::string svg_bars(const std::vector<Bar>& bars);

struct Series {
  std::string label;
  std::string color;
  std::vector<std::pair<double, double>> points;
};
enum class Axis { kLinear, kLog };
/// Lines over x and y; y from 0 (linear) or the data's range (log). `steps` draws dots instead of
/// lines.
std::string svg_lines(const std::vector<Series>& series, const std::string& x_label,
                      const std::string& y_label, Axis x_axis, bool dots);

/// Text for HTML and SVG.
std::string html_escape(const std::string& text);

}  // namespace sluice::lab
