#include "client/cpp/view/stroke_font.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace voxserve::client {
namespace {

// Strokes are separated by '|'; a point is a pair of digits x y. The baseline is y = 2; small letters reach 6, capitals
// and digits 8. Corners within a stroke are rounded; the meeting point of two strokes stays sharp.
constexpr std::array<const char*, 95> kGlyphs = {
    "",                                  // space
    "0804|02",                           // !
    "0807|1817",                         // "
    "1218|3238|0444|0646",               // #
    "473818070615354443321203|2921",     // $
    "0248|0818170708|3343423233",        // %
    "42161728370403122244",              // &
    "0807",                              // '
    "18070312",                          // (
    "08171302",                          // )
    "1814|0725|0527",                    // *
    "0545|2723",                         // +
    "0201",                              // ,
    "0525",                              // -
    "02",                                // .
    "0138",                              // /
    "05071828373322120305",              // 0
    "0628|2822",                         // 1
    "071828373602|0232",                 // 2
    "07182837362515|253433221203",       // 3
    "2804|0434|2822",                    // 4
    "3808|0805|0516263533221203",        // 5
    "372818070312223334251504",          // 6
    "0838|3812",                         // 7
    "15060718283736251504031222333425",  // 8
    "031222333728180706152536",          // 9
    "06|03",                             // :
    "06|0201",                           // ;
    "3705|0533",                         // <
    "0434|0636",                         // =
    "0735|3503",                         // >
    "07182837362524|22",                 // ?
    "34251423344446381806041232",        // @
    "0228|2842|1434",                    // A
    "0208|083847463505|3544433202",      // B
    "4738180703123243",                  // C
    "0208|082847432202",                 // D
    "4808|0802|0242|0535",               // E
    "4808|0802|0535",                    // F
    "4738180703123243|4345|4525",        // G
    "0208|4248|0545",                    // H
    "0208",                              // I
    "3833221203",                        // J
    "0208|4804|1542",                    // K
    "0802|0242",                         // L
    "0208|0825|2548|4842",               // M
    "0208|0842|4248",                    // N
    "05071838474332120305",              // O
    "0208|083847453404",                 // P
    "05071838474332120305|2442",         // Q
    "0208|083847453404|2442",            // R
    "473818070615354443321203",          // S
    "0848|2822",                         // T
    "080312324348",                      // U
    "0822|2248",                         // V
    "0812|1226|2632|3248",               // W
    "0842|0248",                         // X
    "0825|4825|2522",                    // Y
    "0848|4802|0242",                    // Z
    "1808|0802|0212",                    // [
    "0831",                              // backslash
    "0818|1812|0212",                    // ]
    "0628|2846",                         // ^
    "0141",                              // _
    "0817",                              // `
    "3632|3526160503122233",             // a
    "0802|0516263533221203",             // b
    "3526160503122233",                  // c
    "3832|3526160503122233",             // d
    "0434|343526160503122233",           // e
    "281712|0626",                       // f
    "3631201001|3526160503122233",       // g
    "0802|0516263532",                   // h
    "0602|08",                           // i
    "161100|18",                         // j
    "0802|3603|1432",                    // k
    "080312",                            // l
    "0602|05162522|25364542",            // m
    "0602|0516263532",                   // n
    "04051626353322120304",              // o
    "0600|0516263533221203",             // p
    "3630|3526160503122233",             // q
    "0602|04051626",                     // r
    "35261605142433221203",              // s
    "181322|0626",                       // t
    "0603122233|3632",                   // u
    "0622|2246",                         // v
    "0612|1225|2532|3246",               // w
    "0632|0236",                         // x
    "0622|4610",                         // y
    "0636|3602|0232",                    // z
    "28171605141322",                    // {
    "0901",                              // |
    "08171625141302",                    // }
    "04152435",                          // ~
};

constexpr float kGridHeight = 6;  // height of a capital
constexpr float kGap = 1.7f;      // between characters
constexpr float kSpaceWidth = 1.6f;
constexpr float kPen = 0.78f;  // thickness, in units of the grid
constexpr int kSmoothings = 2;

using Stroke = std::vector<PixelPoint>;

const char* GlyphOf(char character) {
  const int index = character - ' ';
  return index >= 0 && index < static_cast<int>(kGlyphs.size()) ? kGlyphs[index] : kGlyphs['?' - ' '];
}

bool IsDigit(char character) { return character >= '0' && character <= '9'; }

float WidthOf(char character) {
  if (character == ' ') return kSpaceWidth;
  if (IsDigit(character)) return 3;  // all digits have the same width, so that numbers align
  float width = 0;
  for (const char* c = GlyphOf(character); *c != '\0'; c += *c == '|' ? 1 : 2) {
    if (*c != '|') width = std::max(width, static_cast<float>(*c - '0'));
  }
  return width;
}

// Cuts corners (Chaikin): replaces each inner corner by two points nearer to its neighbours.
Stroke Smooth(const Stroke& stroke) {
  if (stroke.size() < 3) return stroke;
  Stroke smooth = {stroke.front()};
  for (size_t i = 0; i + 1 < stroke.size(); ++i) {
    const PixelPoint a = stroke[i], b = stroke[i + 1];
    if (i > 0) smooth.push_back({0.75f * a.x + 0.25f * b.x, 0.75f * a.y + 0.25f * b.y});
    if (i + 2 < stroke.size()) smooth.push_back({0.25f * a.x + 0.75f * b.x, 0.25f * a.y + 0.75f * b.y});
  }
  smooth.push_back(stroke.back());
  return smooth;
}

std::vector<Stroke> StrokesOf(char character, PixelPoint origin, float unit) {
  std::vector<Stroke> strokes(1);
  for (const char* c = GlyphOf(character); *c != '\0';) {
    if (*c == '|') {
      strokes.emplace_back();
      ++c;
      continue;
    }
    strokes.back().push_back(
        {origin.x + static_cast<float>(c[0] - '0') * unit, origin.y - static_cast<float>(c[1] - '2') * unit});
    c += 2;
  }
  for (Stroke& stroke : strokes) {
    for (int i = 0; i < kSmoothings; ++i) stroke = Smooth(stroke);
  }
  return strokes;
}

float DistanceTo(const std::vector<Stroke>& strokes, PixelPoint p) {
  float distance = std::numeric_limits<float>::infinity();
  for (const Stroke& stroke : strokes) {
    if (stroke.size() == 1) distance = std::min(distance, DistanceToSegment(p, stroke[0], stroke[0]));
    for (size_t i = 0; i + 1 < stroke.size(); ++i) {
      distance = std::min(distance, DistanceToSegment(p, stroke[i], stroke[i + 1]));
    }
  }
  return distance;
}

void DrawGlyph(char character, PixelPoint origin, float unit, const Color& color, float alpha, Image* image) {
  const std::vector<Stroke> strokes = StrokesOf(character, origin, unit);
  const float radius = kPen * unit / 2;
  const int left = static_cast<int>(origin.x - unit), right = static_cast<int>(origin.x + 6 * unit);
  const int top = static_cast<int>(origin.y - 8 * unit), bottom = static_cast<int>(origin.y + 4 * unit);
  for (int y = top; y < bottom; ++y) {
    for (int x = left; x < right; ++x) {
      const PixelPoint centre = {static_cast<float>(x) + 0.5f, static_cast<float>(y) + 0.5f};
      const float coverage = Coverage(radius - DistanceTo(strokes, centre));
      if (coverage > 0) image->Blend(x, y, color, alpha * coverage);
    }
  }
}

}  // namespace

float TextWidth(absl::string_view text, float size) {
  float width = 0;
  for (const char character : text) width += WidthOf(character) + kGap;
  return text.empty() ? 0 : (width - kGap) * size / kGridHeight;
}

void DrawText(absl::string_view text, PixelPoint left_baseline, float size, const Color& color, float alpha,
              Image* image) {
  const float unit = size / kGridHeight;
  for (const char character : text) {
    DrawGlyph(character, left_baseline, unit, color, alpha, image);
    left_baseline.x += (WidthOf(character) + kGap) * unit;
  }
}

}  // namespace voxserve::client
