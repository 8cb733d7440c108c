// TLS 1.3 with a key that both ends have (external PSK) and nothing else: no certificates, no
// tickets, nothing to resume. The file also derives the keys for it. Both the control plane and the
// data plane use it.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace lockstep::transport::tls {

inline constexpr std::size_t kKeyBytes = 32;
using Key = std::array<unsigned char, kKeyBytes>;

// Derives a key by HKDF-SHA-256. Keys with different `info` reveal nothing about each other.
Key DeriveKey(std::span<const std::byte> from, std::string_view salt, std::string_view info);

enum class Role { kServer, kClient };

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using ContextPtr = std::unique_ptr<SSL_CTX, Free>;
using SslPtr = std::unique_ptr<SSL, Free>;

// The key is copied; the copy is wiped when the context ends.
ContextPtr MakeContext(Role role, const Key& key);

// In a server's handshake, `then` is called once, as soon as a hello that fits the key has been
// read (RFC 8446, 4.2.11.2). The client may have recorded that hello: it proves itself only at the
// end. `then` must live as long as the handshake.
void OnHelloOfKey(SSL* ssl, std::function<void()>& then);

// Whether a finished handshake is based on the key. A peer could have offered a certificate
// instead.
bool ProvenByKey(SSL* ssl);

}  // namespace lockstep::transport::tls
