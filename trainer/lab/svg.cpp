#include "trainer/lab/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace sluice::lab {
namespace {

constexpr double kWidth = 860, kLeft = 170, kRight = 130, kTop = 10, kBottom = 46, kHeight = 300;

std::string format(const char* pattern, double a, double b = 0, double c = 0, double d = 0) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, a, b, c, d);
  return text;
}

// A step of 1, 2 or 5 times a power of ten that cuts `range` into about five.
double nice_step(double range) {
  const double raw = range / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (power * m >= raw) return power * m;
  }
  return power * 10;
}

struct Range {
  double low = 0, high = 1;
};

struct Frame {
  Range x, y;
  Axis x_axis;
  double px(double v) const {
    const double f = x_axis == Axis::kLog ? (std::log10(v) - std::log10(x.low)) /
                                                (std::log10(x.high) - std::log10(x.low))
                                          : (v - x.low) / (x.high - x.low);
    return 60 + f * (kWidth - 60 - kRight);
  }
  double py(double v) const {
    return kHeight - kBottom - (v - y.low) / (y.high - y.low) * (kHeight - kBottom - kTop);
  }
};

Frame frame_fit(const std::vector<Series>& series, Axis x_axis) {
  Frame f{{1e300, -1e300}, {0, -1e300}, x_axis};
  for (const Series& s : series) {
    for (const auto& [x, y] : s.points) {
      if (x_axis == Axis::kLog && x <= 0) continue;
      f.x.low = std::min(f.x.low, x);
      f.x.high = std::max(f.x.high, x);
      f.y.high = std::max(f.y.high, y);
    }
  }
  if (f.x.low >= f.x.high)
    f.x = {f.x.low > 1e299 ? 1 : f.x.low * 0.9, f.x.low > 1e299 ? 10 : f.x.low * 1.1 + 1};
  if (f.y.high <= 0) f.y.high = 1;
  if (x_axis == Axis::kLog) {
    f.x.low = std::pow(10, std::floor(std::log10(f.x.low)));
    f.x.high = std::pow(10, std::ceil(std::log10(f.x.high)));
  }
  return f;
}

std::string grid(const Frame& f) {
  std::string out;
  const auto vertical = [&](double v) {
    out += format("<line class='g' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>", f.px(v), f.px(v),
                  kTop, kHeight - kBottom);
    out += format("<text class='t' text-anchor='middle' x='%.1f' y='%.1f'>", f.px(v),
                  kHeight - kBottom + 16) +
           format("%g</text>", v);
  };
  if (f.x_axis == Axis::kLog) {
    for (double v = f.x.low; v <= f.x.high * 1.001; v *= 10) {
      for (const double part : {1.0, 2.0, 5.0}) {
        if (v * part <= f.x.high * 1.001) vertical(v * part);
      }
    }
  } else {
    const double step = nice_step(f.x.high - f.x.low);
    for (double v = std::ceil(f.x.low / step) * step; v <= f.x.high; v += step) vertical(v);
  }
  const double step = nice_step(f.y.high - f.y.low);
  for (double v = f.y.low; v <= f.y.high * 1.0001; v += step) {
    out += format("<line class='g' x1='60' x2='%.1f' y1='%.1f' y2='%.1f'/>", kWidth - kRight,
                  f.py(v), f.py(v));
    out += format("<text class='t' text-anchor='end' x='54' y='%.1f'>", f.py(v) + 4) +
           format("%g</text>", v);
  }
  return out;
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string svg_bars(const std::vector<Bar>& bars) {
  const double row = 26;
  double most = 0;
  for (const Bar& b : bars) most = std::max(most, b.value);
  if (most <= 0) most = 1;
  std::string out = format("<svg viewBox='0 0 %.0f %.0f' role='img'>", kWidth,
                           static_cast<double>(bars.size()) * row + 8);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double y = static_cast<double>(i) * row + 4;
    const double width = bars[i].value / most * (kWidth - kLeft - kRight - 60);
    out += format("<text class='t' text-anchor='end' x='%.0f' y='%.1f'>", kLeft + 60 - 8, y + 15) +
           html_escape(bars[i].label) + "</text>";
    out += format("<rect x='%.0f' y='%.1f' width='%.1f' height='%.0f' rx='2' ", kLeft + 60, y,
                  width, row - 8) +
           "fill='" + bars[i].color + "'/>";
    out += format("<text class='t' x='%.1f' y='%.1f'>", kLeft + 66 + width, y + 15) +
           html_escape(bars[i].text) + "</text>";
  }
  return out + "</svg>";
}

std::string svg_lines(const std::vector<Series>& series, const std::string& x_label,
                      const std::string& y_label, Axis x_axis, bool dots) {
  const Frame f = frame_fit(series, x_axis);
  std::string out = format("<svg viewBox='0 0 %.0f %.0f' role='img'>", kWidth, kHeight) + grid(f);
  double legend = kTop + 12;
  for (const Series& s : series) {
    std::string path;
    for (const auto& [x, y] : s.points) {
      if (x_axis == Axis::kLog && x <= 0) continue;
      if (dots) {
        out += format("<circle cx='%.1f' cy='%.1f' r='1.6' ", f.px(x), f.py(y)) + "fill='" +
               s.color + "' fill-opacity='.6'/>";
      } else {
        path += format(path.empty() ? "M%.1f %.1f" : "L%.1f %.1f", f.px(x), f.py(y));
      }
    }
    if (!path.empty())
      out += "<path d='" + path + "' fill='none' stroke='" + s.color + "' stroke-width='2'/>";
    out +=
        format("<rect x='%.1f' y='%.1f' width='10' height='10' ", kWidth - kRight + 8, legend - 9) +
        "fill='" + s.color + "'/>";
    out += format("<text class='t' x='%.1f' y='%.1f'>", kWidth - kRight + 22, legend) +
           html_escape(s.label) + "</text>";
    legend += 17;
  }
  out += format("<text class='t' text-anchor='middle' x='%.1f' y='%.1f'>",
                (60 + kWidth - kRight) / 2, kHeight - 8) +
         html_escape(x_label) + "</text>";
  out +=
      format(
          "<text class='t' text-anchor='middle' transform='rotate(-90 14 %.1f)' x='14' y='%.1f'>",
          kHeight / 2, kHeight / 2) +
      html_escape(y_label) + "</text>";
  return out + "</svg>";
}

}  // namespace sluice::lab
