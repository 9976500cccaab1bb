#include "client/cpp/cli/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace voxserve::client {
namespace {

constexpr size_t kWidth = 30;
constexpr absl::Duration kRedraw = absl::Milliseconds(100);  // in a terminal
constexpr absl::Duration kNextLine = absl::Seconds(10);      // elsewhere

std::string Bar(size_t filled) {
  return absl::StrCat("[", std::string(filled, '#'), std::string(kWidth - filled, '.'), "]");
}

}  // namespace

std::string FormatFraction(double fraction) {
  const double part = std::clamp(fraction, 0.0, 1.0);
  return absl::StrFormat("%s %3.0f%%", Bar(static_cast<size_t>(part * kWidth)), std::floor(part * 100));
}

std::string FormatProgress(uint64_t done, uint64_t total, uint64_t failed, absl::Duration elapsed) {
  const size_t filled = total == 0 ? kWidth : static_cast<size_t>(kWidth * std::min(done, total) / total);
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string line = absl::StrFormat("%s %d/%d scans", Bar(filled), done, total);
  if (rate > 0) {
    const int64_t left = std::lround(static_cast<double>(total - std::min(done, total)) / rate);
    absl::StrAppendFormat(&line, "  %.1f/s  %d:%02d left", rate, left / 60, left % 60);
  }
  if (failed > 0) absl::StrAppend(&line, "  ", failed, " failed");
  return line;
}

ProgressBar::ProgressBar(uint64_t total, bool is_tty) : total_(total), is_tty_(is_tty) {}

std::string ProgressBar::Line(absl::Time now) const { return FormatProgress(done_, total_, failed_, now - start_); }

void ProgressBar::ScanDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  ++done_;
  failed_ += ok ? 0 : 1;
  const absl::Time now = absl::Now();
  if (now - last_drawn_ < (is_tty_ ? kRedraw : kNextLine)) return;
  last_drawn_ = now;
  std::cerr << (is_tty_ ? absl::StrCat("\r\x1b[K", Line(now)) : absl::StrCat(Line(now), "\n")) << std::flush;
}

void ProgressBar::Finish() {
  absl::MutexLock lock(&mutex_);
  if (is_tty_) std::cerr << "\r\x1b[K" << std::flush;
}

}  // namespace voxserve::client
