// The JSON writer.
#include "broker/cli/json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::cli {
namespace {

TEST(Json, NestsAndIndents) {
  JsonWriter json;
  json.object_begin();
  json.value("a", 1);
  json.array_begin("list");
  json.object_begin();
  json.value("b", true);
  json.object_end();
  json.object_begin();
  json.object_end();
  json.array_end();
  json.array_begin("none");
  json.array_end();
  json.object_end();
  EXPECT_EQ(json.text(),
            "{\n  \"a\": 1,\n  \"list\": [\n    {\n      \"b\": true\n    },\n    {}\n  ],\n  "
            "\"none\": []\n}\n");
}

TEST(Json, Values) {
  JsonWriter json;
  json.object_begin();
  json.value("text", std::string("a\"b\\c\n\x01") + "é");
  json.value("big", UINT64_MAX);
  json.value("half", 0.5);
  json.value("nan", std::nan(""));
  json.object_end();
  EXPECT_EQ(json.text(),
            "{\n  \"text\": \"a\\\"b\\\\c\\u000a\\u0001é\",\n  \"big\": 18446744073709551615,\n  "
            "\"half\": 0.5,\n"
            "  \"nan\": null\n}\n");
}

}  // namespace
}  // namespace sluice::cli
