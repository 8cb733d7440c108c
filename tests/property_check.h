// A RapidCheck property as a statement of a GoogleTest test.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <utility>

namespace lockstep {

// rc::check prints that a property does not hold, and returns it; a test that does not look at that
// cannot fail. Tests call this one instead. It fails, too, when too many cases were discarded.
template <class Property>
void ExpectHolds(const std::string& what, Property&& property) {
  EXPECT_TRUE(rc::check(what, std::forward<Property>(property))) << what << ": see above";
}

}  // namespace lockstep
