// GET / serves this page: one self-contained document that asks /status and /rounds once a second
// and draws them. It can do what tools/ctl does; where the job has a secret, the page proves it in
// the browser. It loads nothing from elsewhere, and shows texts of workers as text alone.
#pragma once

#include <string_view>

namespace lockstep::coordinator {

std::string_view LivePage();
// The value of the header Content-Security-Policy.
std::string_view LivePageSecurityPolicy();

}  // namespace lockstep::coordinator
