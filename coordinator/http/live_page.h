// The page that GET / serves: one self-contained document that asks /status and /rounds once a
// second and draws them, and that can do what tools/ctl does: where the job has a secret the page
// proves it as ctl does, in the browser. It loads nothing from elsewhere, and what workers say of
// themselves is shown as text alone.
#pragma once

#include <string_view>

namespace lockstep::coordinator {

std::string_view LivePage();
// For the header Content-Security-Policy.
std::string_view LivePageSecurityPolicy();

}  // namespace lockstep::coordinator
