// The certified provider of npm, `oidc-provider`: node oidc_provider.mjs NODE_MODULES PORT REDIRECT_URI
// Everybody who types a name is signed in as that name, and has the group ml.
import { pathToFileURL } from "node:url";

const [modules, port, redirect] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(`${modules}/oidc-provider/lib/index.js`));
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: "weft",
    client_secret: "a-secret-of-the-client",
    redirect_uris: [redirect],
    grant_types: ["authorization_code"],
    response_types: ["code"],
    token_endpoint_auth_method: "client_secret_post",
  }],
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "email", "groups"],
  conformIdTokenClaims: false, // the claims of the scopes are in the ID token
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true } },
  cookies: { keys: ["of-tests"] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: async () => ({ sub: id, email: `${id}@example.org`, email_verified: true, groups: ["ml"] }),
  }),
  async loadExistingGrant(ctx) { // nobody is asked for consent
    const grant = new ctx.oidc.provider.Grant({
      clientId: ctx.oidc.client.clientId,
      accountId: ctx.oidc.session.accountId,
    });
    grant.addOIDCScope("openid email groups");
    await grant.save();
    return grant;
  },
});
provider.listen(Number(port), "127.0.0.1");
